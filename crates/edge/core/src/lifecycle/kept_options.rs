//! Options that a successor must have in common with the process that it replaces.
//!
//! A successor without a listener of the running process would refuse the clients of that listener, and one with
//! another endpoint would leave the registration of the first one to callers. Either is a mistake in an option far
//! more often than an intent, so such a successor is refused.

use std::io;

/// The listeners and endpoints of a process as options, such as `proxy --listen 127.0.0.1:7410`. Other options may
/// change with an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptOptions(Vec<String>);

impl KeptOptions {
    /// The options of a process of this kind (`proxy`), each with its value.
    pub fn new<'a>(process: &str, options: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        Self(options.into_iter().map(|(option, value)| format!("{process} {option} {value}")).collect())
    }

    /// The options as a message, one per line. No option contains a line break.
    pub(crate) fn to_message(&self) -> Vec<u8> {
        self.0.join("\n").into_bytes()
    }

    /// Reads the message of another process.
    pub(crate) fn from_message(message: &[u8]) -> Self {
        Self(String::from_utf8_lossy(message).lines().map(str::to_owned).collect())
    }

    /// Checks that a process with these options can replace the `running` one.
    ///
    /// # Errors
    /// Names the options that this process lacks, and those that it has instead.
    pub(crate) fn check(&self, running: &Self) -> io::Result<()> {
        let lacks = running.without(self);
        if lacks.is_empty() {
            return Ok(());
        }
        let instead = match self.without(running) {
            others if others.is_empty() => String::new(),
            others => format!(", and has '{}' instead", others.join("', '")),
        };
        let problem = format!(
            "the running process has '{}', which this one lacks{instead}; what the running process serves there would \
             end: give this one the same",
            lacks.join("', '")
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }

    fn without(&self, other: &Self) -> Vec<String> {
        self.0.iter().filter(|option| !other.0.contains(option)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(inbound: &str, listen: &[&str]) -> KeptOptions {
        let listen = listen.iter().map(|address| ("--listen", (*address).to_owned()));
        KeptOptions::new("proxy", listen.chain([("--inbound", inbound.to_owned())]))
    }

    #[test]
    fn successor_is_refused_with_the_options_that_differ() {
        let running = options("shop/one@127.0.0.1:1", &["127.0.0.1:2", "127.0.0.1:3"]);
        assert_eq!(KeptOptions::from_message(&running.to_message()), running);
        assert_eq!(KeptOptions::from_message(&KeptOptions::default().to_message()), KeptOptions::default());
        running.check(&running).unwrap();
        let more = options("shop/one@127.0.0.1:1", &["127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:2"]);
        more.check(&running).expect("further listeners take nothing away");
        let other = options("shop/two@127.0.0.1:1", &["127.0.0.1:2", "127.0.0.1:3"]);
        let refused = other.check(&running).unwrap_err().to_string();
        assert!(
            refused.starts_with(
                "the running process has 'proxy --inbound shop/one@127.0.0.1:1', which this one lacks, and has \
                 'proxy --inbound shop/two@127.0.0.1:1' instead; "
            ),
            "{refused}"
        );
        let fewer =
            options("shop/one@127.0.0.1:1", &["127.0.0.1:2"]).check(&running).unwrap_err().to_string();
        assert!(
            fewer.starts_with("the running process has 'proxy --listen 127.0.0.1:3', which this one lacks; ")
        );
    }
}
