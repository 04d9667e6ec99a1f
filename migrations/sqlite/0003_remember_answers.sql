CREATE TABLE idempotency (
    scope       TEXT    NOT NULL,  -- whose key it is
    key         TEXT    NOT NULL,  -- what the caller sent
    fingerprint BLOB    NOT NULL,  -- SHA-256 of the request
    status      INTEGER NOT NULL,  -- the answer: HTTP status
    location    TEXT,              -- the answer: the Location header
    body        TEXT    NOT NULL,  -- the answer: the body
    created_at  INTEGER NOT NULL,  -- when it was given

    PRIMARY KEY (scope, key),
    CONSTRAINT idempotency_fingerprint_length CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_status_in_range CHECK (status BETWEEN 100 AND 599)
) STRICT;
