-- Times are nanoseconds since 1970 in UTC, as the database's own clock told them.

-- One row: what all servers share beside the limits.
CREATE TABLE store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- Rises with every change of a limit; who has read up to here knows all of them.
    revision bigint NOT NULL DEFAULT 0,
    -- No instant before this is used again.
    latest bigint NOT NULL DEFAULT 0,
    -- The highest fence of limits that are gone.
    fence bigint NOT NULL DEFAULT 0
);
INSERT INTO store DEFAULT VALUES;

CREATE SEQUENCE generations;

-- Limits: standing 0 in force, 1 vanished from a file and may come back until retired_until, 2 gone.
CREATE TABLE limits (
    generation bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    standing smallint NOT NULL DEFAULT 0,
    retired_until bigint,
    edition integer NOT NULL DEFAULT 1,
    -- What was charged in an edition before this cannot be given back.
    voided integer NOT NULL DEFAULT 0,
    -- What was held in an edition before this is not known by its row.
    unpinned integer NOT NULL DEFAULT 0,
    -- Whether it was put by a file, and by nobody since.
    applied boolean NOT NULL DEFAULT false,
    revision bigint NOT NULL
);
CREATE UNIQUE INDEX limits_by_id ON limits (id) WHERE standing < 2;
CREATE INDEX limits_by_revision ON limits (revision);

-- What a limit said from when on. Rows follow from edition to edition when somebody comes to them.
CREATE TABLE editions (
    generation bigint NOT NULL,
    edition integer NOT NULL,
    began bigint NOT NULL,
    -- Whether counts were zeroed; else the text was changed.
    is_reset boolean NOT NULL,
    version integer NOT NULL,
    text bytea NOT NULL,
    descent bytea NOT NULL,
    PRIMARY KEY (generation, edition)
);

-- What is counted: one row for all keys of a limit (key 00) and one for each key (01 and the key).
CREATE TABLE states (
    generation bigint NOT NULL,
    key bytea NOT NULL,
    edition integer NOT NULL,
    -- The latest instant it was decided at.
    seen bigint NOT NULL DEFAULT 0,
    -- From when on it may be forgotten, if nobody asks.
    freshens bigint,
    -- When the last of those who hold something lapses.
    held_until bigint,
    -- How often this row alone was reset.
    resets integer NOT NULL DEFAULT 0,
    -- Of the row of all keys: the latest fence, and how many rows there are beside it if that is bounded.
    fence bigint NOT NULL DEFAULT 0,
    keys bigint,
    state bytea NOT NULL DEFAULT '',
    PRIMARY KEY (generation, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX states_by_freshness ON states (freshens) WHERE freshens IS NOT NULL;
CREATE INDEX states_of_all ON states (generation) WHERE key = '\x00';
CREATE INDEX states_by_edition ON states (generation, edition);

CREATE TABLE leases (
    id bytea PRIMARY KEY,
    -- Whom it is for: the limit and the key of its first ask.
    generation bigint NOT NULL,
    holder text NOT NULL,
    granted_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    -- Of each holding: the limit, its edition, and how often its row was reset.
    marks bytea NOT NULL,
    body bytea NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX leases_by_end ON leases (expires_at);
CREATE INDEX leases_by_holder ON leases (generation, holder);

CREATE TABLE requests (
    id bytea PRIMARY KEY,
    until bigint NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX requests_by_end ON requests (until);

CREATE TABLE settlements (
    id bytea PRIMARY KEY,
    until bigint NOT NULL
);
CREATE INDEX settlements_by_end ON settlements (until);

-- The activities that run at this moment.
CREATE VIEW session_activity AS
SELECT encode(lease.id, 'hex') AS id,
       lease.holder AS user_sub,
       timestamptz 'epoch' + lease.granted_at / 1000 * interval '1 microsecond' AS timestamp,
       timestamptz 'epoch' + lease.expires_at / 1000 * interval '1 microsecond' AS expires_at
FROM leases lease
JOIN limits ON limits.generation = lease.generation AND limits.standing < 2
WHERE limits.id = 'activity'
  AND lease.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint;
