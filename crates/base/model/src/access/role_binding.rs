use std::fmt;

use super::WorkloadBounds;
use crate::{CallerMatch, Identity, Invalid, ServiceName, Tenant, policy::CallerId};

/// Maximum number of subjects, tenants or services of a binding.
const MAX_ENTRIES: usize = 1000;
/// Maximum length of a user or group name, in bytes.
const MAX_TEXT: usize = 512;

/// A role: the operations on records that a person or program may perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRole {
    /// Reads the records of tenants.
    Viewer,
    /// Reads and writes the records of tenants and registers their endpoints. Cannot change which callers may call
    /// their services.
    Operator,
    /// Reads the records of tenants, and changes which callers may call their services.
    Authorizer,
    /// Reads the records of services and registers their endpoints, even if another agent registered them before.
    Registrar,
    /// Everything except access to the authority's keys, which belong to the operating system user of the control
    /// plane.
    Admin,
}

/// Binds a role to subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleBinding {
    /// The role.
    pub role: AccessRole,
    /// Viewers, operators and authorizers: the tenants of the role. Empty means all tenants.
    pub tenants: Vec<Tenant>,
    /// Registrars: the services of the role.
    pub services: Vec<ServiceName>,
    /// Subjects that get the role; at least one.
    pub subjects: Vec<Subject>,
    /// Operators: programs that may be given identities of the tenants' services. `None` means no programs.
    pub workloads: Option<WorkloadBounds>,
}

/// A holder of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Callers with a matching identity.
    Caller(CallerMatch),
    /// `uid:N`: a user of the control plane's machine, connected over a Unix socket.
    Uid(u32),
    /// `user:NAME`: the subject of a bearer token.
    User(String),
    /// `group:NAME`: a group named in a bearer token.
    Group(String),
    /// `anonymous`: callers without an identity, such as those of the HTTP pages.
    Anonymous,
}

impl AccessRole {
    const ALL: [Self; 5] = [Self::Viewer, Self::Operator, Self::Authorizer, Self::Registrar, Self::Admin];

    /// The role's name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Authorizer => "authorizer",
            Self::Registrar => "registrar",
            Self::Admin => "admin",
        }
    }

    /// Parses a role name in a document.
    ///
    /// # Errors
    /// If the text is no role.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
            let words = Self::ALL.map(Self::as_str);
            Invalid::new("role", format!("there is no role '{text}'"), crate::suggestion::hint(text, &words))
        })
    }
}

impl Subject {
    /// Parses a subject as written in documents.
    ///
    /// # Errors
    /// When the text is not a subject.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let named = |name: &str| match name.is_empty() || name.len() > MAX_TEXT {
            true => {
                let problem = format!("'{text}' names no one");
                Err(Invalid::new("", problem, "write user:NAME or group:NAME, as in the tokens"))
            }
            false => Ok(name.to_owned()),
        };
        if text == "anonymous" {
            return Ok(Self::Anonymous);
        }
        match text.split_once(':') {
            Some(("uid", uid)) => uid.parse().map(Self::Uid).map_err(|_| {
                Invalid::new("", format!("'{text}' is no user id"), "write uid:NUMBER, such as uid:1001")
            }),
            Some(("user", name)) => named(name).map(Self::User),
            Some(("group", name)) => named(name).map(Self::Group),
            _ => CallerMatch::new(text).map(Self::Caller).map_err(|error| Invalid {
                hint: "write a SPIFFE id, TENANT/SERVICE or fairmesh/operator/NAME, also with '*' at its end, uid:NUMBER, \
                       user:NAME, group:NAME or anonymous"
                    .into(),
                ..error
            }),
        }
    }

    /// Whether a caller is this subject. `user` holds the name and groups of a token.
    pub fn matches(&self, caller: &Identity, user: Option<(&str, &[String])>) -> bool {
        match (self, caller) {
            (Self::Caller(callers), Identity::Spiffe(id)) => callers.matches(&CallerId::new(id.clone())),
            (Self::Uid(uid), Identity::Local { uid: found }) => uid == found,
            (Self::Anonymous, Identity::Anonymous) => true,
            (Self::User(name), _) => user.is_some_and(|(user, _)| user == name),
            (Self::Group(name), _) => user.is_some_and(|(_, groups)| groups.contains(name)),
            _ => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller(callers) => f.write_str(callers.as_str()),
            Self::Uid(uid) => write!(f, "uid:{uid}"),
            Self::User(name) => write!(f, "user:{name}"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

impl RoleBinding {
    /// Checks the bounds, and that the scope has exactly what the role needs.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        for (field, length) in [
            ("subjects", self.subjects.len()),
            ("tenants", self.tenants.len()),
            ("services", self.services.len()),
        ] {
            if length > MAX_ENTRIES {
                let problem = format!("has {length}");
                return Err(Invalid::new(field, problem, format!("give at most {MAX_ENTRIES}")));
            }
        }
        if self.subjects.is_empty() {
            let hint = "list those who have the role, such as subjects: [fairmesh/operator/web-1.uid-1000]";
            return Err(Invalid::new("subjects", "is empty", hint));
        }
        if let Some(bounds) = &self.workloads {
            bounds.validate().map_err(|e| e.within("workloads"))?;
            if self.role != AccessRole::Operator {
                let problem = format!("does not belong to the role {}", self.role.as_str());
                return Err(Invalid::new("workloads", problem, "leave it out; admins need none"));
            }
        }
        let (tenants, services) = (!self.tenants.is_empty(), !self.services.is_empty());
        match self.role {
            AccessRole::Registrar if !services => {
                Err(Invalid::new("services", "is empty", "list the services of the registrar"))
            }
            AccessRole::Registrar | AccessRole::Admin if tenants => {
                let problem = format!("does not belong to the role {}", self.role.as_str());
                Err(Invalid::new("tenants", problem, "leave it out"))
            }
            AccessRole::Viewer | AccessRole::Operator | AccessRole::Authorizer | AccessRole::Admin
                if services =>
            {
                let problem = format!("does not belong to the role {}", self.role.as_str());
                Err(Invalid::new(
                    "services",
                    problem,
                    "leave it out, and give tenants to viewers, operators and authorizers",
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_binding_subjects_parse_as_displayed_and_match_their_callers() {
        let alice: Identity =
            Identity::Spiffe("spiffe://prod/fairmesh/operator/web-1.uid-7".parse().unwrap());
        let token = Some(("alice", &["sre".to_owned()][..]));
        for (text, caller, user, matches) in [
            ("fairmesh/operator/web-1.*", &alice, None, true),
            ("fairmesh/operator/web-2.*", &alice, None, false),
            ("uid:7", &Identity::Local { uid: 7 }, None, true),
            ("uid:8", &Identity::Local { uid: 7 }, None, false),
            ("user:alice", &Identity::Anonymous, token, true),
            ("user:bob", &alice, token, false),
            ("group:sre", &alice, token, true),
            ("group:sre", &alice, None, false),
            ("anonymous", &Identity::Anonymous, None, true),
            ("anonymous", &alice, None, false),
            ("*", &Identity::Anonymous, None, false),
        ] {
            let subject = Subject::parse(text).unwrap();
            assert_eq!(subject.to_string(), text);
            assert_eq!(subject.matches(caller, user), matches, "{text} {caller}");
        }
        for wrong in ["", "uid:", "uid:x", "user:", "alice", "group:"] {
            assert!(Subject::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn role_binding_scope_must_fit_its_role() {
        let binding = |role, tenants: &[&str], services: &[&str]| RoleBinding {
            role,
            tenants: tenants.iter().map(|name| Tenant::new(*name).unwrap()).collect(),
            services: services.iter().map(|name| ServiceName::new(*name).unwrap()).collect(),
            subjects: vec![Subject::Anonymous],
            workloads: None,
        };
        assert!(binding(AccessRole::Operator, &["shop"], &[]).validate().is_ok());
        assert!(binding(AccessRole::Viewer, &[], &[]).validate().is_ok());
        assert!(binding(AccessRole::Registrar, &[], &["shop/cart"]).validate().is_ok());
        assert!(binding(AccessRole::Registrar, &[], &[]).validate().is_err());
        assert!(binding(AccessRole::Admin, &["shop"], &[]).validate().is_err());
        assert!(binding(AccessRole::Viewer, &[], &["shop/cart"]).validate().is_err());
    }
}
