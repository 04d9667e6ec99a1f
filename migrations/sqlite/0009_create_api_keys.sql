-- Who may use the API. Rows stay when a key is revoked: without any row the API would be open.
CREATE TABLE api_keys (
    id          TEXT    NOT NULL,  -- The key's name for programs.
    name        TEXT    NOT NULL,  -- The key's name for people.
    scopes      TEXT    NOT NULL,  -- What it may do: words with a space between them.
    secret_hash BLOB    NOT NULL,  -- SHA-256 of the secret, which is stored nowhere.
    created_at  INTEGER NOT NULL,  -- When the key was made.
    revoked_at  INTEGER,           -- When the key was taken away; null while it is good.
    CONSTRAINT api_keys_pkey PRIMARY KEY (id),
    CONSTRAINT api_keys_secret_once UNIQUE (secret_hash),
    CONSTRAINT api_keys_secret_hash_length CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT api_keys_some_scope CHECK (scopes <> '')
) STRICT;
