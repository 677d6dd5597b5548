//! Workloads: which programs on a machine may have a service's identity. Selectors compare facts that the kernel
//! reports.

use std::fmt;

use crate::{Invalid, Label};

/// Maximum number of selectors of a service.
pub(crate) const MAX_PROGRAMS: usize = 64;
/// Maximum number of agents to which the identity of a service is restricted.
pub(crate) const MAX_AGENTS: usize = 1000;
/// Maximum length of a path or name in a selector, in bytes.
const MAX_TEXT: usize = 1024;
/// Name of the agent's own network namespace in selectors.
pub const HOST_NAMESPACE: &str = "host";

/// Programs that may have a service's identity, besides programs run by the agent's own user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadEntry {
    /// Agents that may vouch for the service; each must also be allowed to vouch for the tenant. Empty means all
    /// agents that may.
    pub agents: Vec<Label>,
    /// Selectors. A program run by another user than the agent's must match at least one.
    pub programs: Vec<ProgramSelector>,
}

/// Conditions on a program, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramSelector {
    /// The program's effective user.
    pub uid: Option<u32>,
    /// The program's effective group.
    pub gid: Option<u32>,
    /// The path of the program's executable.
    pub executable: Option<String>,
    /// The program's cgroup (v2) or an ancestor of it, such as `/system.slice/cart.service`.
    pub cgroup: Option<String>,
    /// The program's network namespace: a name in `/run/netns`, or `host` for the agent's own namespace.
    pub network_namespace: Option<String>,
}

/// Facts about a program that the kernel reports. An error says why a fact cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramFacts {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Path of the executable.
    pub executable: Result<String, String>,
    /// Path of the cgroup (v2).
    pub cgroup: Result<String, String>,
    /// Name of the network namespace.
    pub network_namespace: Result<String, String>,
}

/// Why a workload does not select a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSelected {
    /// The workload has no selectors.
    #[error("it lists no programs")]
    NoSelectors,
    /// No selector matches the program.
    #[error("programs[{index}] does not match: {}", .failed.join(", and "))]
    NoMatch {
        /// Index of the closest selector.
        index: usize,
        /// Conditions of this selector that the program fails, with the values found.
        failed: Vec<String>,
    },
}

impl WorkloadEntry {
    /// Whether `agent` may vouch for the service.
    pub fn permits_agent(&self, agent: &Label) -> bool {
        self.agents.is_empty() || self.agents.contains(agent)
    }

    /// Checks whether a program may have the identity.
    ///
    /// # Errors
    /// The conditions of the closest selector that the program does not meet.
    pub fn check(&self, program: &ProgramFacts) -> Result<(), NotSelected> {
        let mut closest: Option<(usize, Vec<String>)> = None;
        for (i, selector) in self.programs.iter().enumerate() {
            let failed = selector.failed_conditions(program);
            if failed.is_empty() {
                return Ok(());
            }
            if closest.as_ref().is_none_or(|(_, fewest)| failed.len() < fewest.len()) {
                closest = Some((i, failed));
            }
        }
        Err(match closest {
            None => NotSelected::NoSelectors,
            Some((index, failed)) => NotSelected::NoMatch { index, failed },
        })
    }

    /// Number of conditions of the most specific selector that matches the program; `None` if no selector matches.
    pub fn specificity(&self, program: &ProgramFacts) -> Option<usize> {
        let met = self.programs.iter().filter(|selector| selector.failed_conditions(program).is_empty());
        met.map(ProgramSelector::conditions).max()
    }

    /// Index of the first selector that may select the same programs as a selector of `other`: both name the same
    /// user or cgroup, and one agent may vouch for both. `None` if there is none.
    pub fn contested(&self, other: &Self) -> Option<usize> {
        let meet = self.agents.is_empty()
            || other.agents.is_empty()
            || self.agents.iter().any(|a| other.agents.contains(a));
        let contested = |selector: &ProgramSelector| other.programs.iter().any(|one| selector.contests(one));
        self.programs.iter().position(contested).filter(|_| meet)
    }

    /// Checks the limits, and that every selector names a user, group or cgroup.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (field, length, most) in
            [("agents", self.agents.len(), MAX_AGENTS), ("programs", self.programs.len(), MAX_PROGRAMS)]
        {
            if length > most {
                return Err(Invalid::new(field, format!("has {length}"), format!("give at most {most}")));
            }
        }
        if self.agents.is_empty() && self.programs.is_empty() {
            let hint = "list the programs that may have this identity, such as programs: [{uid: 1001}]";
            return Err(Invalid::new("programs", "is empty, and so is agents", hint));
        }
        for (i, selector) in self.programs.iter().enumerate() {
            selector.validate().map_err(|e| e.within(format!("programs[{i}]")))?;
        }
        Ok(())
    }
}

impl ProgramSelector {
    fn validate(&self) -> Result<(), Invalid> {
        if self.uid.is_none() && self.gid.is_none() && self.cgroup.is_none() {
            // Any user can run an executable, and with libraries of their own.
            let problem = "has neither uid, gid nor cgroup, so that every user could match";
            return Err(Invalid::new(
                "",
                problem,
                "add uid, such as {uid: 1001}; other conditions narrow it",
            ));
        }
        for (field, path) in [("executable", &self.executable), ("cgroup", &self.cgroup)] {
            let Some(path) = path else { continue };
            let plain = path.starts_with('/') && path.len() <= MAX_TEXT && !path.ends_with('/');
            if !plain || path.split('/').any(|part| part == "..") {
                let problem = format!("'{path}' is no absolute path");
                return Err(Invalid::new(field, problem, "write it from /, without a slash at its end"));
            }
        }
        match &self.network_namespace {
            Some(name) if name.is_empty() || name.len() > MAX_TEXT || name.contains('/') => {
                let problem = format!("'{name}' is no name of a network namespace");
                let hint = format!("write a name that 'ip netns' lists, or {HOST_NAMESPACE}");
                Err(Invalid::new("networkNamespace", problem, hint))
            }
            _ => Ok(()),
        }
    }

    fn conditions(&self) -> usize {
        let Self { uid, gid, executable, cgroup, network_namespace } = self;
        let texts = [executable, cgroup, network_namespace];
        usize::from(uid.is_some())
            + usize::from(gid.is_some())
            + texts.into_iter().filter(|text| text.is_some()).count()
    }

    /// Whether both selectors name the same user or nested cgroups, and no other condition separates them.
    fn contests(&self, other: &Self) -> bool {
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one != other)
        };
        let cgroups = self.cgroup.as_deref().zip(other.cgroup.as_deref());
        let nested = cgroups.map(|(one, other)| is_within(one, other) || is_within(other, one));
        let uids = self.uid.zip(other.uid).map(|(one, other)| one == other);
        let gids_differ = self.gid.zip(other.gid).is_some_and(|(one, other)| one != other);
        let told_apart = gids_differ
            || uids == Some(false)
            || nested == Some(false)
            || differ(&self.executable, &other.executable)
            || differ(&self.network_namespace, &other.network_namespace);
        (uids == Some(true) || nested == Some(true)) && !told_apart
    }

    fn failed_conditions(&self, program: &ProgramFacts) -> Vec<String> {
        let same = |wanted: &str, found: &str| wanted == found;
        let texts = [
            text("executable", self.executable.as_deref(), &program.executable, same),
            text("cgroup", self.cgroup.as_deref(), &program.cgroup, is_within),
            text("networkNamespace", self.network_namespace.as_deref(), &program.network_namespace, same),
        ];
        let numbers = [number("uid", self.uid, program.uid), number("gid", self.gid, program.gid)];
        numbers.into_iter().chain(texts).flatten().collect()
    }
}

/// Whether `cgroup` is `outer` or a descendant of it.
pub(crate) fn is_within(outer: &str, cgroup: &str) -> bool {
    cgroup.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn number(field: &str, wanted: Option<u32>, found: u32) -> Option<String> {
    let wanted = wanted.filter(|wanted| *wanted != found)?;
    Some(format!("{field} is {found}, not {wanted}"))
}

fn text(
    field: &str,
    wanted: Option<&str>,
    found: &Result<String, String>,
    matches: impl Fn(&str, &str) -> bool,
) -> Option<String> {
    let wanted = wanted?;
    match found {
        Ok(found) if matches(wanted, found) => None,
        Ok(found) => Some(format!("{field} is {found}, not {wanted}")),
        Err(reason) => Some(format!("{field} is to be {wanted}, and cannot be read: {reason}")),
    }
}

impl fmt::Display for ProgramFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}, gid {}", self.uid, self.gid)?;
        for (name, fact) in [("executable", &self.executable), ("cgroup", &self.cgroup)] {
            if let Ok(fact) = fact {
                write!(f, ", {name} {fact}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> ProgramFacts {
        ProgramFacts {
            uid: 1001,
            gid: 1002,
            executable: Ok("/usr/bin/cart".into()),
            cgroup: Ok("/system.slice/cart.service/worker".into()),
            network_namespace: Err("permission denied".into()),
        }
    }

    fn entry(selector: ProgramSelector) -> WorkloadEntry {
        WorkloadEntry { programs: vec![selector], agents: Vec::new() }
    }

    #[test]
    fn program_must_meet_all_conditions_of_workload_selector() {
        let cart = ProgramSelector {
            uid: Some(1001),
            gid: Some(1002),
            executable: Some("/usr/bin/cart".into()),
            cgroup: Some("/system.slice/cart.service".into()),
            network_namespace: None,
        };
        assert_eq!(entry(cart.clone()).check(&program()), Ok(()));
        let other = ProgramSelector { uid: Some(1), ..cart.clone() };
        let two = WorkloadEntry { programs: vec![other.clone(), cart], agents: Vec::new() };
        assert_eq!(two.check(&program()), Ok(()));
        assert_eq!(
            entry(other).check(&program()).unwrap_err().to_string(),
            "programs[0] does not match: uid is 1001, not 1"
        );
        for (selector, problem) in [
            (ProgramSelector { gid: Some(7), ..ProgramSelector::default() }, "gid is 1002, not 7"),
            (
                ProgramSelector { cgroup: Some("/system.slice/cart".into()), ..ProgramSelector::default() },
                "cgroup is /system.slice/cart.service/worker, not /system.slice/cart",
            ),
            (
                ProgramSelector { executable: Some("/bin/cart".into()), ..ProgramSelector::default() },
                "executable is /usr/bin/cart, not /bin/cart",
            ),
            (
                ProgramSelector { network_namespace: Some("host".into()), ..ProgramSelector::default() },
                "networkNamespace is to be host, and cannot be read: permission denied",
            ),
        ] {
            let error = entry(selector).check(&program()).unwrap_err();
            assert_eq!(error.to_string(), format!("programs[0] does not match: {problem}"));
        }
    }

    #[test]
    fn workload_selector_that_any_user_could_match_is_refused() {
        let executable =
            ProgramSelector { executable: Some("/bin/cart".into()), ..ProgramSelector::default() };
        assert!(entry(executable.clone()).validate().is_err());
        assert!(entry(ProgramSelector { uid: Some(0), ..executable }).validate().is_ok());
        assert!(WorkloadEntry::default().validate().is_err());
        for wrong in ["", "cart", "/cart/", "/a/../b"] {
            let selector = ProgramSelector { cgroup: Some(wrong.into()), ..ProgramSelector::default() };
            assert!(entry(selector).validate().is_err(), "{wrong}");
        }
    }
}
