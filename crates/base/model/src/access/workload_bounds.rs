use std::fmt;

use crate::{Invalid, Label, WorkloadEntry, workload::is_within};

/// Maximum number of user ranges, cgroups or agents in the bounds.
const MAX_BOUNDS: usize = 1000;

/// Bounds on the programs to which an operator may give identities of its services. Without bounds, only
/// administrators may register workloads, as in SPIRE: an operator who may register a user's programs can take over
/// their identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadBounds {
    /// Users that the programs run as.
    pub uids: Vec<UidRange>,
    /// cgroups (v2) that the programs run in, including all cgroups below.
    pub cgroups: Vec<String>,
    /// Agents that may vouch for the programs. Empty means all agents that may vouch for the tenant.
    pub agents: Vec<Label>,
}

/// A range of user ids, inclusive at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    /// The first user id.
    pub first: u32,
    /// The last user id, not below the first.
    pub last: u32,
}

impl UidRange {
    /// Parses `1001` or `1000-1999`.
    ///
    /// # Errors
    /// When the text has neither form.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(Invalid::new(
                "",
                format!("'{text}' is no range of users"),
                "write a number, such as 1001, or two, such as 1000-1999",
            )),
        }
    }

    /// Whether the range includes a user id.
    pub fn includes(self, uid: u32) -> bool {
        (self.first..=self.last).contains(&uid)
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// The part of a workload that is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfBounds {
    /// The program at this index.
    #[error("programs[{0}] is outside of its users and control groups")]
    Program(usize),
    /// The agents that may vouch for the workload.
    #[error("agents names none, or others than its own")]
    Agents,
}

impl WorkloadBounds {
    /// Checks that all programs of a workload are within the bounds, each by its user or control group.
    ///
    /// # Errors
    /// The part of the workload that is out of bounds.
    pub fn check(&self, entry: &WorkloadEntry) -> Result<(), OutOfBounds> {
        let outside = entry.programs.iter().position(|program| {
            let by_uid = program.uid.is_some_and(|uid| self.uids.iter().any(|range| range.includes(uid)));
            let within = |cgroup: &str| self.cgroups.iter().any(|bound| is_within(bound, cgroup));
            let by_cgroup = program.cgroup.as_deref().is_some_and(within);
            !by_uid && !by_cgroup
        });
        if let Some(i) = outside {
            return Err(OutOfBounds::Program(i));
        }
        let permits_agent = |agent: &Label| self.agents.contains(agent);
        match self.agents.is_empty() || (!entry.agents.is_empty() && entry.agents.iter().all(permits_agent)) {
            true => Ok(()),
            false => Err(OutOfBounds::Agents),
        }
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        for (field, length) in
            [("uids", self.uids.len()), ("cgroups", self.cgroups.len()), ("agents", self.agents.len())]
        {
            if length > MAX_BOUNDS {
                return Err(Invalid::new(
                    field,
                    format!("has {length}"),
                    format!("give at most {MAX_BOUNDS}"),
                ));
            }
        }
        if self.uids.is_empty() && self.cgroups.is_empty() {
            let hint =
                "list the users, such as uids: [1000-1999], or control groups, such as cgroups: [/red.slice]";
            return Err(Invalid::new("uids", "is empty, and so is cgroups", hint));
        }
        let is_plain =
            |path: &str| path.starts_with('/') && path.len() > 1 && path.split('/').skip(1).all(is_name);
        match self.cgroups.iter().position(|path| !is_plain(path)) {
            Some(i) => {
                let problem = format!("'{}' is no absolute path below /", self.cgroups[i]);
                Err(Invalid::new(
                    format!("cgroups[{i}]"),
                    problem,
                    "write it from /, without a slash at its end",
                ))
            }
            None => Ok(()),
        }
    }
}

fn is_name(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProgramSelector;

    #[test]
    fn workload_bounds_match_programs_by_user_or_cgroup() {
        let bounds = WorkloadBounds {
            uids: vec![UidRange::parse("1000-1999").unwrap()],
            cgroups: vec!["/red.slice".into()],
            agents: vec![Label::new("red-1").unwrap()],
        };
        let entry = |uid: Option<u32>, cgroup: Option<&str>, agents: &[&str]| WorkloadEntry {
            programs: vec![ProgramSelector {
                uid,
                cgroup: cgroup.map(Into::into),
                gid: Some(7),
                ..ProgramSelector::default()
            }],
            agents: agents.iter().map(|name| Label::new(*name).unwrap()).collect(),
        };
        for (uid, cgroup, agents, is_within) in [
            (Some(1000), None, &["red-1"][..], true),
            (Some(1999), Some("/blue.slice"), &["red-1"], true),
            (None, Some("/red.slice/api"), &["red-1"], true),
            (Some(2000), None, &["red-1"], false),
            (None, Some("/red.slices"), &["red-1"], false),
            (None, None, &["red-1"], false),
            (Some(1000), None, &[], false),
            (Some(1000), None, &["red-1", "blue-1"], false),
        ] {
            let checked = bounds.check(&entry(uid, cgroup, agents));
            assert_eq!(checked.is_ok(), is_within, "{uid:?} {cgroup:?} {agents:?}: {checked:?}");
        }
    }

    #[test]
    fn workload_bounds_without_users_and_cgroups_are_refused() {
        let of = |uids: &[&str], cgroups: &[&str]| WorkloadBounds {
            uids: uids.iter().map(|text| UidRange::parse(text).unwrap()).collect(),
            cgroups: cgroups.iter().map(ToString::to_string).collect(),
            agents: Vec::new(),
        };
        assert!(of(&["7"], &[]).validate().is_ok() && of(&[], &["/red.slice"]).validate().is_ok());
        assert!(of(&[], &[]).validate().is_err());
        for wrong in ["", "/", "red", "/red/", "/red/../blue"] {
            assert!(of(&[], &[wrong]).validate().is_err(), "{wrong}");
        }
        for wrong in ["", "-", "7-6", "a", "1-2-3", "-1"] {
            assert!(UidRange::parse(wrong).is_err(), "{wrong}");
        }
    }
}
