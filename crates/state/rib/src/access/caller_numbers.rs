//! Numbers that callers choose to identify themselves.

use std::hash::{BuildHasher as _, RandomState};

use fairmesh_model::Identity;

/// Binds a number that a process chooses to the identity of its machine or service, so that no caller can use another
/// caller's number. A keyed hash prevents anyone from constructing a collision.
#[derive(Clone, Debug, Default)]
pub struct CallerNumbers(RandomState);

impl CallerNumbers {
    /// Returns the number of an identity; `None` if the identity is not authenticated.
    pub fn of_identity(&self, identity: &Identity) -> Option<u64> {
        match identity {
            Identity::Spiffe(id) | Identity::Federated(id) => Some(self.0.hash_one(id)),
            Identity::Local { uid } => Some(self.0.hash_one(uid)),
            Identity::Anonymous => None,
        }
    }

    /// Returns the number of a caller, bound to its identity. Unauthenticated callers keep the number that they
    /// chose.
    pub fn of(&self, identity: &Identity, number: u64) -> u64 {
        self.of_identity(identity).map_or(number, |identity| self.0.hash_one((identity, number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_caller_number_is_bound_to_identity() {
        let numbers = CallerNumbers::default();
        let [one, two] = ["web-1", "web-2"]
            .map(|name| Identity::Spiffe(format!("spiffe://prod/fairmesh/agent/{name}").parse().unwrap()));
        assert_eq!(numbers.of(&one, 7), numbers.of(&one, 7));
        assert_ne!(numbers.of(&one, 7), numbers.of(&two, 7));
        assert_ne!(numbers.of(&one, 7), numbers.of(&one, 8));
        let [bob, eve] = [1, 2].map(|uid| Identity::Local { uid });
        assert_ne!(numbers.of(&bob, 7), numbers.of(&eve, 7));
        assert_ne!(numbers.of_identity(&bob), numbers.of_identity(&eve));
        assert_eq!(numbers.of(&Identity::Anonymous, 7), 7);
    }
}
