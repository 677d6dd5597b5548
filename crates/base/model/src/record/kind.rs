//! The kinds of records, and the rules for each kind.

use crate::ServiceName;

use super::Prefix;

/// The rules for all records of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindRules {
    /// Whether earlier values are stored.
    pub history: KindHistory,
    /// Which callers may read the records.
    pub readers: Readers,
    /// Which callers may write the records.
    pub writers: Writers,
    /// Whether the records are configuration, which `Admin/Apply` writes.
    pub is_applied: bool,
    /// Whether and where the audit log lists writes of the records.
    pub audit: Audit,
    /// The list of `fairmesh get` that shows the records.
    pub list: RecordList,
}

/// Where earlier values of a record are stored. A kind with history has a name, used in the admin API and in history
/// keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindHistory {
    /// Earlier values are history records under this name.
    Kept(&'static str),
    /// Earlier values are only in the audit log, under this name. The record itself has only the current value.
    InAudit(&'static str),
    /// Earlier values are stored nowhere, or only in the audit log without a name.
    No,
}

/// Which callers may read the records of a kind, besides callers that may view everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Every caller with an identity. Routers need these records, or the records explain routing.
    Everyone,
    /// Callers that may view the service, and callers on machines whose programs may call the service.
    Callers,
    /// Callers that may view the service. For mesh records: callers that may view everything.
    Viewers,
}

/// Which callers may write the records of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Operators of the tenant.
    Operators,
    /// Authorizers of the tenant.
    Authorizers,
    /// Administrators, and operators to whom registration is delegated.
    Delegates,
    /// Administrators.
    Admins,
}

/// Where the audit log lists writes of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Listed among changes of configuration, roles and identities.
    Security,
    /// Listed among frequent writes, such as registrations.
    Activity,
    /// Not listed. Records of this kind are measurements, or copies of values that the log lists elsewhere.
    Omitted,
}

/// A list of `fairmesh get`, with its own columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordList {
    /// Services.
    Services,
    /// Endpoints of services.
    Endpoints,
    /// Results of active health checks.
    Health,
    /// Policies.
    Policies,
    /// Defaults of policies.
    PolicyDefaults,
    /// Shard maps.
    Shards,
    /// Shard moves.
    Moves,
    /// Region tables.
    Tables,
    /// Workloads: which programs may have the identity of a service.
    Workloads,
    /// Authorizations: which callers may use which service.
    Authorization,
    /// Regions, their distances and drains.
    Regions,
    /// Host types.
    Hosts,
    /// Gateway backends.
    GatewayBackends,
    /// Limits of tenants at a gateway.
    GatewayQuotas,
    /// Services of a gateway, and the backends that serve them.
    GatewayServices,
    /// Role bindings.
    Roles,
    /// No list. Other commands show the records, such as `fairmesh identity`, `explain` and `history`.
    Unlisted,
}

/// Whether records of a kind belong to a service or to the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindScope {
    /// Records belong to a service and are stored below `/t/`.
    Service,
    /// Records belong to the mesh and are stored below `/g/`.
    Mesh,
}

macro_rules! kinds {
    (
        service { $(
            $(#[$service_doc:meta])*
            $service_kind:ident $(($($service_field:tt)+))? at $folder:literal => $service_value:ident($service_type:ident)
            $service_rules:tt
        )* }
        mesh { $(
            $(#[$doc:meta])*
            $kind:ident $(($($field:tt)+))? at [$first:literal $(, $more:literal)*] => $value:ident($type:ident)
            $rules:tt
        )* }
    ) => {
        /// A kind of record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RecordKind {
            $($(#[$service_doc])* $service_kind,)*
            $($(#[$doc])* $kind,)*
            /// A service's shard map. It is stored in parts and has no [`Record`](crate::Record).
            ShardMap,
            /// An earlier value of a service's record.
            History,
            /// An earlier value of a mesh record.
            MeshHistory,
        }

        impl RecordKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[
                $(Self::$service_kind,)* $(Self::$kind,)* Self::ShardMap, Self::History, Self::MeshHistory,
            ];

            /// The rules of the kind.
            pub const fn rules(self) -> KindRules {
                use {Audit::*, KindHistory::*, Readers::*, RecordList::*, Writers::*};
                match self {
                    $(Self::$service_kind => KindRules $service_rules,)*
                    $(Self::$kind => KindRules $rules,)*
                    Self::ShardMap => KindRules {
                        history: No, readers: Callers, writers: Operators, is_applied: false, audit: Activity,
                        list: Shards,
                    },
                    // The control plane writes a history record together with the change.
                    Self::History | Self::MeshHistory => KindRules {
                        history: No, readers: Viewers, writers: Admins, is_applied: false, audit: Omitted,
                        list: Unlisted,
                    },
                }
            }

            /// Whether records of the kind belong to a service or to the mesh.
            pub const fn scope(self) -> KindScope {
                match self {
                    $(Self::$service_kind)|* | Self::ShardMap | Self::History => KindScope::Service,
                    $(Self::$kind)|* | Self::MeshHistory => KindScope::Mesh,
                }
            }

            /// The kind's part of record keys, without a slash at either end: `services`, `topology/regions`.
            pub const fn path(self) -> &'static str {
                match self {
                    $(Self::$service_kind => $folder,)*
                    $(Self::$kind => concat!($first $(, "/", $more)*),)*
                    Self::ShardMap => "shards",
                    Self::History | Self::MeshHistory => "history",
                }
            }

            /// Whether a service, or the mesh, has at most one record of the kind.
            pub fn is_single(self) -> bool {
                match self {
                    $(Self::$service_kind => matches!(stringify!($($($service_field)+)?), ""),)*
                    $(Self::$kind => matches!(stringify!($($($field)+)?), ""),)*
                    Self::ShardMap | Self::History | Self::MeshHistory => false,
                }
            }

            /// The kind whose records are in this folder of a tenant, such as `services`.
            pub fn in_folder(folder: &str) -> Option<Self> {
                Some(match folder {
                    $($folder => Self::$service_kind,)*
                    "shards" => Self::ShardMap,
                    "history" => Self::History,
                    _ => return None,
                })
            }
        }
    };
}

crate::record_kinds!(kinds);

impl RecordKind {
    /// The kind of the record at `key`, without parsing the rest of the key. `None` for kinds of newer releases.
    /// Names of tenants and services may equal the names of kinds.
    pub fn of(key: &str) -> Option<Self> {
        if let Some(of_tenant) = key.strip_prefix("/t/") {
            return Self::in_folder(of_tenant.split('/').nth(1)?);
        }
        let path = key.strip_prefix("/g/")?;
        Self::ALL.iter().copied().find(|kind| kind.scope() == KindScope::Mesh && kind.contains(path))
    }

    /// Whether the key `/g/{path}` belongs to the kind.
    fn contains(self, path: &str) -> bool {
        path.strip_prefix(self.path()).is_some_and(|rest| match self.is_single() {
            true => rest.is_empty(),
            false => rest.starts_with('/'),
        })
    }

    /// The kind whose history has this name.
    pub fn with_history(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.history_name() == Some(name))
    }

    /// The name of the kind's history in the admin API; `None` if the kind has no history.
    pub const fn history_name(self) -> Option<&'static str> {
        match self.rules().history {
            KindHistory::Kept(name) | KindHistory::InAudit(name) => Some(name),
            KindHistory::No => None,
        }
    }

    /// The name of the kind in history records; `None` if earlier values are not stored.
    pub const fn kept_name(self) -> Option<&'static str> {
        match self.rules().history {
            KindHistory::Kept(name) => Some(name),
            KindHistory::InAudit(_) | KindHistory::No => None,
        }
    }

    /// The first segment of the path. Related mesh kinds share it, such as `topology`.
    pub fn group(self) -> &'static str {
        let path = self.path();
        path.split_once('/').map_or(path, |(group, _)| group)
    }

    /// The prefix of all records of the kind for a service: one key, or a folder.
    pub fn prefix_of(self, service: &ServiceName) -> Prefix {
        Prefix::of_service(self, service)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn record_kind_is_found_despite_names_equal_to_kinds() {
        use RecordKind::{DefaultAuthorization, Endpoint, History, JoinedAgent, MeasuredDistances, Policy};
        for (key, kind) in [
            ("/t/history/policies/tables", Some(Policy)),
            ("/t/shop/history/policies/cart/7", Some(History)),
            ("/t/shop/endpoints/health/eu/a", Some(Endpoint)),
            ("/g/topology/measured/eu", Some(MeasuredDistances)),
            ("/g/topology/measured", None),
            ("/g/topology/regions2", None),
            ("/g/authorization", Some(DefaultAuthorization)),
            ("/g/identity/agents/web-1", Some(JoinedAgent)),
            ("/t/shop/novelties/cart", None),
            ("/t/shop", None),
            ("/x/y", None),
        ] {
            assert_eq!(RecordKind::of(key), kind, "{key}");
        }
    }

    #[test]
    fn history_names_of_record_kinds_are_unique() {
        let names: Vec<_> = RecordKind::ALL.iter().filter_map(|kind| kind.history_name()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| RecordKind::with_history(name).is_some()));
    }

    #[test]
    fn configuration_writes_are_in_security_log() {
        for kind in RecordKind::ALL {
            let rules = kind.rules();
            assert!(!rules.is_applied || rules.audit == Audit::Security, "{kind:?}");
            assert!(kind.history_name().is_none() || rules.is_applied, "{kind:?}");
        }
    }

    #[test]
    fn readers_and_writers_of_record_kind_match_its_scope() {
        for kind in RecordKind::ALL {
            let KindRules { readers, writers, .. } = kind.rules();
            match kind.scope() {
                KindScope::Service => assert_ne!(readers, Readers::Everyone, "{kind:?}"),
                KindScope::Mesh => {
                    assert_ne!(readers, Readers::Callers, "{kind:?}");
                    // Operators write the defaults of their tenants.
                    let is_of_tenants = *kind == RecordKind::PolicyDefaults;
                    assert_eq!(writers == Writers::Admins, !is_of_tenants, "{kind:?}");
                }
            }
        }
    }
}
