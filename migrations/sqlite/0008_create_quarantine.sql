-- Messages that nothing can be done with until somebody has looked.
CREATE TABLE quarantine (
    id          INTEGER NOT NULL,  -- The number of the case.
    source      TEXT    NOT NULL,  -- Where it was found: relay, or the name of a queue.
    key         TEXT    NOT NULL,  -- The name of the message there.
    payload     BLOB    NOT NULL,  -- The message as it was received, its beginning if it is long.
    reason      TEXT    NOT NULL,  -- What is wrong with it, as it was last seen.
    attempts    INTEGER NOT NULL,  -- How often it was seen.
    first_seen  INTEGER NOT NULL,  -- When it was first seen.
    last_seen   INTEGER NOT NULL,  -- When it was last seen.
    resolved_at INTEGER,           -- When somebody settled the case.
    resolution  TEXT,              -- How it was settled.
    CONSTRAINT quarantine_pkey PRIMARY KEY (id),
    CONSTRAINT quarantine_key_length CHECK (octet_length(key) BETWEEN 1 AND 512),
    CONSTRAINT quarantine_payload_length CHECK (octet_length(payload) <= 65536),
    CONSTRAINT quarantine_attempts_positive CHECK (attempts > 0),
    CONSTRAINT quarantine_seen_in_order CHECK (last_seen >= first_seen),
    CONSTRAINT quarantine_resolution_when_resolved
        CHECK ((resolved_at IS NULL) = (resolution IS NULL))
) STRICT;

-- What comes again while nobody has looked at it is the same case.
CREATE UNIQUE INDEX quarantine_open_once ON quarantine (source, key) WHERE resolved_at IS NULL;
-- The list of open cases, which are few among those that were.
CREATE INDEX quarantine_open ON quarantine (id) WHERE resolved_at IS NULL;
