CREATE TABLE idempotency (
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint bytea            NOT NULL,
    status      integer          NOT NULL,
    location    text,
    body        text             NOT NULL,
    created_at  timestamptz(3)   NOT NULL,
    CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key),
    CONSTRAINT idempotency_fingerprint_length CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_status_in_range CHECK (status BETWEEN 100 AND 599)
);

COMMENT ON TABLE idempotency IS 'Answers given under an Idempotency-Key, written with their effect.';
COMMENT ON COLUMN idempotency.scope IS 'Whose key it is.';
COMMENT ON COLUMN idempotency.key IS 'What the caller sent.';
COMMENT ON COLUMN idempotency.fingerprint IS 'SHA-256 of the request.';
COMMENT ON COLUMN idempotency.status IS 'HTTP status of the answer.';
COMMENT ON COLUMN idempotency.location IS 'The Location header of the answer.';
COMMENT ON COLUMN idempotency.body IS 'The body of the answer.';
COMMENT ON COLUMN idempotency.created_at IS 'When the answer was given.';
