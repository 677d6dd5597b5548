/// How one try ended, as far as the choice of the next endpoint cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It answered, and the answer says nothing against it.
    Ok,
    /// It answered with a failure of its own (such as HTTP 5xx), broke off, or did not answer in time.
    Failed,
    /// It refused the call at once, since it has as many as it can work on: no failure, and no place to go for a moment.
    Overloaded,
    /// No connection: nothing could be sent.
    Unreachable,
    /// The try ended without saying anything about the endpoint, such as a caller that went away.
    Unknown,
}
