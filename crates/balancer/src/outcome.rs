/// How one try ended, as far as the choice of the next endpoint cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It answered, and the answer says nothing against it.
    Ok,
    /// It answered with a failure of its own (such as HTTP 5xx), broke off, or did not answer in time.
    Failed,
    /// No connection: nothing could be sent.
    Unreachable,
    /// The try ended without saying anything about the endpoint, such as a caller that went away.
    Unknown,
}

/// For how many nanoseconds an endpoint is disfavoured after its `failures`-th failure in a row (A16).
///
/// From the first where it could not be reached, from the third where it took the request (one that is late or fails is
/// no verdict): 100 ms, doubled with each further failure up to 12.8 s.
pub fn penalty(outcome: Outcome, failures: u32) -> u64 {
    let tolerated = match outcome {
        Outcome::Ok | Outcome::Unknown => return 0,
        Outcome::Failed => 2,
        Outcome::Unreachable => 0,
    };
    match failures.saturating_sub(tolerated) {
        0 => 0,
        counted => 100_000_000 << (counted - 1).min(7),
    }
}
