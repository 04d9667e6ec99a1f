CREATE TABLE quarantine (
    id          bigint GENERATED ALWAYS AS IDENTITY,
    source      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    payload     bytea            NOT NULL,
    reason      text             NOT NULL,
    attempts    bigint           NOT NULL,
    first_seen  timestamptz(3)   NOT NULL,
    last_seen   timestamptz(3)   NOT NULL,
    resolved_at timestamptz(3),
    resolution  text,
    CONSTRAINT quarantine_pkey PRIMARY KEY (id),
    CONSTRAINT quarantine_key_length CHECK (octet_length(key) BETWEEN 1 AND 512),
    CONSTRAINT quarantine_payload_length CHECK (octet_length(payload) <= 65536),
    CONSTRAINT quarantine_attempts_positive CHECK (attempts > 0),
    CONSTRAINT quarantine_seen_in_order CHECK (last_seen >= first_seen),
    CONSTRAINT quarantine_resolution_when_resolved
        CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);

-- What comes again while nobody has looked at it is the same case.
CREATE UNIQUE INDEX quarantine_open_once ON quarantine (source, key) WHERE resolved_at IS NULL;
-- The list of open cases, which are few among those that were.
CREATE INDEX quarantine_open ON quarantine (id) WHERE resolved_at IS NULL;

COMMENT ON TABLE quarantine IS 'Messages that nothing can be done with until somebody has looked.';
COMMENT ON COLUMN quarantine.id IS 'The number of the case.';
COMMENT ON COLUMN quarantine.source IS 'Where it was found: relay, or the name of a queue.';
COMMENT ON COLUMN quarantine.key IS 'The name of the message there.';
COMMENT ON COLUMN quarantine.payload IS 'The message as it was received, its beginning if it is long.';
COMMENT ON COLUMN quarantine.reason IS 'What is wrong with it, as it was last seen.';
COMMENT ON COLUMN quarantine.attempts IS 'How often it was seen.';
COMMENT ON COLUMN quarantine.first_seen IS 'When it was first seen.';
COMMENT ON COLUMN quarantine.last_seen IS 'When it was last seen.';
COMMENT ON COLUMN quarantine.resolved_at IS 'When somebody settled the case.';
COMMENT ON COLUMN quarantine.resolution IS 'How it was settled.';
