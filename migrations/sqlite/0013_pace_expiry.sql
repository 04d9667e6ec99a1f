-- How the rates stand by which expiry is paced.
CREATE TABLE admission (
    key                    TEXT    NOT NULL,  -- global, or a dimension and a name in it, such as
                                              -- merchant:acme.
    theoretical_arrival_us INTEGER NOT NULL,  -- When the next permit would come at an even rate.
    CONSTRAINT admission_pkey PRIMARY KEY (key)
) STRICT, WITHOUT ROWID;

-- On whose behalf it was made.
ALTER TABLE reservations ADD COLUMN merchant TEXT NOT NULL DEFAULT 'default'
    CONSTRAINT reservations_merchant_length CHECK (octet_length(merchant) BETWEEN 1 AND 64);
-- How often its release was tried and failed.
ALTER TABLE reservations ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0
    CONSTRAINT reservations_attempts_not_negative CHECK (attempts >= 0);
-- How long its release had to wait for a permit.
ALTER TABLE reservations ADD COLUMN limiter_wait_ms INTEGER NOT NULL DEFAULT 0
    CONSTRAINT reservations_limiter_wait_not_negative CHECK (limiter_wait_ms >= 0);
-- How long its release had to wait after something stood in its way.
ALTER TABLE reservations ADD COLUMN retry_wait_ms INTEGER NOT NULL DEFAULT 0
    CONSTRAINT reservations_retry_wait_not_negative CHECK (retry_wait_ms >= 0);

-- On whose behalf it is used.
ALTER TABLE api_keys ADD COLUMN merchant TEXT NOT NULL DEFAULT 'default'
    CONSTRAINT api_keys_merchant_length CHECK (octet_length(merchant) BETWEEN 1 AND 64);
