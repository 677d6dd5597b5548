/// A rejected value from a user or peer, with a correction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {hint}")]
pub struct Invalid {
    /// The field, as a path such as `shards[3].start`.
    pub field: String,
    /// What is wrong, quoting the value.
    pub problem: String,
    /// What to write instead.
    pub hint: String,
}

impl Invalid {
    /// Creates an error in `field`: `problem` says what is wrong, and `hint` how to correct it.
    pub fn new(field: impl Into<String>, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), hint: hint.into() }
    }

    /// Prefixes the field with the path of an enclosing value: `start` within `shards[3]` becomes `shards[3].start`.
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
