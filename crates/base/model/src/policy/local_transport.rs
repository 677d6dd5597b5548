use crate::Invalid;

/// What carries calls within a machine to endpoints with mutual TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalTransport {
    /// The kernel may, in plaintext that never leaves it, if both ends have proved their identities to each other.
    #[default]
    Kernel,
    /// Mutual TLS, as for calls between machines.
    Sidecar,
}

impl LocalTransport {
    /// The word in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Sidecar => "sidecar",
        }
    }

    /// Parses the word in documents.
    ///
    /// # Errors
    /// If the word names no transport.
    pub fn named(text: &str) -> Result<Self, Invalid> {
        let named = [Self::Kernel, Self::Sidecar].into_iter().find(|one| one.as_str() == text);
        named.ok_or_else(|| {
            let problem = format!("is '{text}', which is no local transport");
            Invalid::new("localTransport", problem, "write kernel or sidecar")
        })
    }
}
