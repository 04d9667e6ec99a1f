CREATE TABLE quarantine_actions (
    id      bigint GENERATED ALWAYS AS IDENTITY,
    case_id bigint           NOT NULL,
    action  text COLLATE "C" NOT NULL,
    actor   text             NOT NULL,
    at      timestamptz(3)   NOT NULL,
    outcome text             NOT NULL,
    CONSTRAINT quarantine_actions_pkey PRIMARY KEY (id),
    CONSTRAINT quarantine_actions_case FOREIGN KEY (case_id) REFERENCES quarantine (id),
    CONSTRAINT quarantine_actions_action_known CHECK (action IN ('replay', 'dismiss'))
);

CREATE INDEX quarantine_actions_of_case ON quarantine_actions (case_id, id);
-- Cases of one name, settled ones among them.
CREATE INDEX quarantine_key ON quarantine (key, id);

COMMENT ON TABLE quarantine_actions IS 'What operators did about cases in quarantine.';
COMMENT ON COLUMN quarantine_actions.id IS 'The number of the action; later ones have larger ones.';
COMMENT ON COLUMN quarantine_actions.case_id IS 'About which case.';
COMMENT ON COLUMN quarantine_actions.action IS 'What was done.';
COMMENT ON COLUMN quarantine_actions.actor IS
    'Who did it: the name of the API key, or local where there was none.';
COMMENT ON COLUMN quarantine_actions.at IS 'When.';
COMMENT ON COLUMN quarantine_actions.outcome IS 'What came of it.';
COMMENT ON COLUMN quarantine.source IS 'Where it was found: relay, hold, or the name of a queue.';
