/// A value that a person or a peer gave and that Fairmesh refuses, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {hint}")]
pub struct Invalid {
    /// Where the value stands, as a path such as `shards[3].start`.
    pub field: String,
    /// What is wrong with it, quoting the value.
    pub problem: String,
    /// What to write instead.
    pub hint: String,
}

impl Invalid {
    /// Says that `field` is wrong because of `problem`, and that `hint` mends it.
    pub fn new(field: impl Into<String>, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), hint: hint.into() }
    }

    /// The same refusal seen from one level further out: `start` within `shards[3]` becomes `shards[3].start`.
    #[must_use]
    pub fn within(mut self, outer: impl AsRef<str>) -> Self {
        let outer = outer.as_ref();
        self.field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner if inner.starts_with('[') => format!("{outer}{inner}"),
            inner => format!("{outer}.{inner}"),
        };
        self
    }
}
