-- Answers given under an Idempotency-Key, written with their effect.
CREATE TABLE idempotency (
    scope       TEXT    NOT NULL,  -- Whose key it is.
    key         TEXT    NOT NULL,  -- What the caller sent.
    fingerprint BLOB    NOT NULL,  -- SHA-256 of the request.
    status      INTEGER NOT NULL,  -- HTTP status of the answer.
    location    TEXT,              -- The Location header of the answer.
    body        TEXT    NOT NULL,  -- The body of the answer.
    created_at  INTEGER NOT NULL,  -- When the answer was given.
    CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key),
    CONSTRAINT idempotency_fingerprint_length CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_status_in_range CHECK (status BETWEEN 100 AND 599)
) STRICT;
