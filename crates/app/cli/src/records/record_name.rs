//! Names of records on the command line.

use std::{fmt, str::FromStr};

use fairmesh_model::{Invalid, KindScope, Label, RecordKey, RecordKind, ServiceName};

/// The name of a record on the command line.
#[derive(Clone, Debug)]
pub(super) enum RecordName {
    /// A record of a service.
    Service(ServiceName),
    /// The name of a mesh-wide record.
    Label(Label),
}

impl FromStr for RecordName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.contains('/') {
            true => text.parse().map(Self::Service),
            false => Label::new(text).map(Self::Label),
        }
    }
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(f),
            Self::Label(name) => name.fmt(f),
        }
    }
}

/// How the records of a kind are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// Named by a service.
    Service,
    /// Named by a label.
    Label,
    /// Named by a tenant; the record of the mesh has no name.
    Tenant,
    /// No name: the mesh has one such record.
    Unnamed,
}

impl Naming {
    /// How the records of a kind are named.
    pub(super) fn of(kind: RecordKind) -> Self {
        match (kind.scope(), kind.is_single()) {
            (KindScope::Service, _) => Self::Service,
            (KindScope::Mesh, true) => Self::Unnamed,
            (KindScope::Mesh, false) if kind == RecordKind::PolicyDefaults => Self::Tenant,
            (KindScope::Mesh, false) => Self::Label,
        }
    }

    /// Whether this naming fits a name.
    fn is_of(self, name: Option<&RecordName>) -> bool {
        match name {
            Some(RecordName::Service(_)) => self == Self::Service,
            Some(RecordName::Label(_)) => matches!(self, Self::Label | Self::Tenant),
            None => matches!(self, Self::Unnamed | Self::Tenant),
        }
    }
}

/// The key of a record by kind and name; `None` if the kind's records are not named this way.
pub(super) fn key_of(kind: RecordKind, name: Option<&RecordName>) -> Option<RecordKey> {
    let text = name.map(ToString::to_string).unwrap_or_default();
    let key = RecordKey::with_history(kind.history_name()?, &text).ok()?;
    Naming::of(kind).is_of(name).then_some(key)
}
