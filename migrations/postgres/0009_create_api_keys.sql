CREATE TABLE api_keys (
    id          uuid             NOT NULL,
    name        text COLLATE "C" NOT NULL,
    scopes      text COLLATE "C" NOT NULL,
    secret_hash bytea            NOT NULL,
    created_at  timestamptz(3)   NOT NULL,
    revoked_at  timestamptz(3),
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_secret_once UNIQUE (secret_hash),
    CONSTRAINT api_keys_secret_hash_length CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT api_keys_some_scope CHECK (scopes <> '')
);

COMMENT ON TABLE api_keys IS 'Who may use the API. Rows stay when a key is revoked: without any row the API would be open.';
COMMENT ON COLUMN api_keys.id IS 'The key''s name for programs.';
COMMENT ON COLUMN api_keys.name IS 'The key''s name for people.';
COMMENT ON COLUMN api_keys.scopes IS 'What it may do: words with a space between them.';
COMMENT ON COLUMN api_keys.secret_hash IS 'SHA-256 of the secret, which is stored nowhere.';
COMMENT ON COLUMN api_keys.created_at IS 'When the key was made.';
COMMENT ON COLUMN api_keys.revoked_at IS 'When the key was taken away; null while it is good.';
