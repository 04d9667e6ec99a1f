-- How fast holds expire, and what has put each one off.
CREATE TABLE admission (
    key                    text COLLATE "C" NOT NULL,
    theoretical_arrival_us bigint           NOT NULL,
    CONSTRAINT admission_pkey PRIMARY KEY (key)
);

COMMENT ON TABLE admission IS 'How the rates stand by which expiry is paced.';
COMMENT ON COLUMN admission.key IS 'global, or a dimension and a name in it, such as merchant:acme.';
COMMENT ON COLUMN admission.theoretical_arrival_us IS
    'When the next permit would come at an even rate, in microseconds since 1970.';

ALTER TABLE reservations
    ADD COLUMN merchant text COLLATE "C" NOT NULL DEFAULT 'default',
    ADD COLUMN attempts bigint NOT NULL DEFAULT 0,
    ADD COLUMN limiter_wait_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN retry_wait_ms bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT reservations_merchant_length CHECK (octet_length(merchant) BETWEEN 1 AND 64),
    ADD CONSTRAINT reservations_waits_not_negative
        CHECK (attempts >= 0 AND limiter_wait_ms >= 0 AND retry_wait_ms >= 0);

COMMENT ON COLUMN reservations.attempt_at IS
    'When the expirer next tries: the deadline, later if it was deferred, or the end of time if its release was given up.';
COMMENT ON COLUMN reservations.merchant IS 'On whose behalf it was made.';
COMMENT ON COLUMN reservations.attempts IS 'How often its release was tried and failed.';
COMMENT ON COLUMN reservations.limiter_wait_ms IS 'How long its release had to wait for a permit.';
COMMENT ON COLUMN reservations.retry_wait_ms IS
    'How long its release had to wait after something stood in its way.';

ALTER TABLE api_keys
    ADD COLUMN merchant text COLLATE "C" NOT NULL DEFAULT 'default',
    ADD CONSTRAINT api_keys_merchant_length CHECK (octet_length(merchant) BETWEEN 1 AND 64);

COMMENT ON COLUMN api_keys.merchant IS 'On whose behalf it is used.';
