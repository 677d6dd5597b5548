use std::time::Duration;

/// What a mesh has done since it was connected, and how old what it knows is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls begun.
    pub calls: u64,
    /// Calls that ended in a fault; answers of servers, good or bad, do not count.
    pub faults: u64,
    /// Tries made: calls that found an endpoint, and their retries.
    pub tries: u64,
    /// Tries after the first, those for a wrong shard included.
    pub retries: u64,
    /// Retries that the budget refused.
    pub retries_refused: u64,
    /// Answers of servers that did not hold the shard.
    pub wrong_shard: u64,
    /// Calls for which no endpoint could be chosen.
    pub unroutable: u64,
    /// Connections opened.
    pub connections_opened: u64,
    /// Connections that are open now.
    pub connections_open: u64,
    /// Tries that went over a connection which had carried another before.
    pub reused: u64,
    /// How long ago what the mesh knows was last confirmed: zero while the agent is connected and in touch itself.
    pub data_age: Duration,
}
