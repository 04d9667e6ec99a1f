-- What operators did about cases in quarantine.
CREATE TABLE quarantine_actions (
    id      INTEGER NOT NULL,  -- The number of the action; later ones have larger ones.
    case_id INTEGER NOT NULL,  -- About which case.
    action  TEXT    NOT NULL,  -- What was done.
    actor   TEXT    NOT NULL,  -- Who did it: the name of the API key, or local where there was none.
    at      INTEGER NOT NULL,  -- When.
    outcome TEXT    NOT NULL,  -- What came of it.
    CONSTRAINT quarantine_actions_pkey PRIMARY KEY (id),
    CONSTRAINT quarantine_actions_case FOREIGN KEY (case_id) REFERENCES quarantine (id),
    CONSTRAINT quarantine_actions_action_known CHECK (action IN ('replay', 'dismiss'))
) STRICT;

CREATE INDEX quarantine_actions_of_case ON quarantine_actions (case_id, id);
-- Cases of one name, settled ones among them.
CREATE INDEX quarantine_key ON quarantine (key, id);
