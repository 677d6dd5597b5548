/// The result of an attempt, as far as it affects future picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A successful response.
    Ok,
    /// A failure of the server (such as HTTP 5xx), a broken connection, or no response in time.
    Failed,
    /// The server refused the call at once because it is overloaded. This is not a failure, but picks should avoid
    /// the server briefly.
    Overloaded,
    /// No connection could be opened, so the server received nothing.
    Unreachable,
    /// The result says nothing about the endpoint, for example because the caller cancelled the attempt.
    Unknown,
}
