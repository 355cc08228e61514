-- Times are nanoseconds since 1970 in UTC, read from the database's clock.

-- One row with the state that all servers share besides the limits.
CREATE TABLE store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- Increases with every change of a limit. A server that has read this revision knows all changes.
    revision bigint NOT NULL DEFAULT 0,
    -- The latest time that a server has used. No server uses an earlier one.
    latest bigint NOT NULL DEFAULT 0,
    -- The highest fence of removed limits.
    fence bigint NOT NULL DEFAULT 0
);
INSERT INTO store DEFAULT VALUES;

CREATE SEQUENCE generations;

-- Limits. standing: 0 active, 1 retired (missing from the file, restorable until retired_until), 2 removed.
CREATE TABLE limits (
    generation bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    standing smallint NOT NULL DEFAULT 0,
    retired_until bigint,
    edition integer NOT NULL DEFAULT 1,
    -- Charges made under an earlier edition than this are not refunded.
    voided integer NOT NULL DEFAULT 0,
    -- Holdings made under an earlier edition than this are not in their row.
    unpinned integer NOT NULL DEFAULT 0,
    -- Whether a limits file was the last to write this limit.
    applied boolean NOT NULL DEFAULT false,
    revision bigint NOT NULL
);
CREATE UNIQUE INDEX limits_by_id ON limits (id) WHERE standing < 2;
CREATE INDEX limits_by_revision ON limits (revision);

-- The definitions of a limit and their start times. A row is upgraded to the current edition at its next use.
CREATE TABLE editions (
    generation bigint NOT NULL,
    edition integer NOT NULL,
    began bigint NOT NULL,
    -- true: the counts were reset to zero. false: the definition changed.
    is_reset boolean NOT NULL,
    version integer NOT NULL,
    text bytea NOT NULL,
    descent bytea NOT NULL,
    PRIMARY KEY (generation, edition)
);

-- Usage counts: one row for all keys of a limit (key 00), and one row for each key (01 followed by the key).
CREATE TABLE states (
    generation bigint NOT NULL,
    key bytea NOT NULL,
    edition integer NOT NULL,
    -- The time of the latest decision on this row.
    seen bigint NOT NULL DEFAULT 0,
    -- The time from which the row counts nothing and can be deleted.
    freshens bigint,
    -- The latest expiry of the leases that hold units of this row.
    held_until bigint,
    -- The number of resets of this key.
    resets integer NOT NULL DEFAULT 0,
    -- In the row of all keys: the latest fence, and the number of key rows if the limit bounds its keys.
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
    -- The limit and the key of its first ask.
    generation bigint NOT NULL,
    holder text NOT NULL,
    granted_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    -- For each holding: the limit, its edition, and the number of resets of its row.
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

-- The activities that are running now.
CREATE VIEW session_activity AS
SELECT encode(lease.id, 'hex') AS id,
       lease.holder AS user_sub,
       timestamptz 'epoch' + lease.granted_at / 1000 * interval '1 microsecond' AS timestamp,
       timestamptz 'epoch' + lease.expires_at / 1000 * interval '1 microsecond' AS expires_at
FROM leases lease
JOIN limits ON limits.generation = lease.generation AND limits.standing < 2
WHERE limits.id = 'activity'
  AND lease.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint;
