//! How commands name kinds of records.
//!
//! A kind with a history has an argument here, by which `delete`, `history` and `rollback` name it. Some arguments name
//! two kinds of records that form one document.

use std::sync::LazyLock;

use clap::{ValueEnum, builder::PossibleValue};
use fairmesh_model::RecordKind;

use super::get;

/// A kind of configuration on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(&'static Argument);

/// An argument that names kinds of records.
#[derive(Debug, PartialEq, Eq)]
struct Argument {
    name: &'static str,
    aliases: &'static [&'static str],
    help: &'static str,
}

const SERVICE: Argument =
    Argument { name: "service", aliases: &["services"], help: "The declaration of the service" };
const POLICY: Argument =
    Argument { name: "policy", aliases: &["policies"], help: "The routing policy of the service" };
const WORKLOAD: Argument = Argument {
    name: "workload",
    aliases: &["workloads"],
    help: "The programs that may have the identity of the service",
};
const TOPOLOGY: Argument = Argument {
    name: "topology",
    aliases: &["regions"],
    help: "Regions, and the declared round trips between them",
};
const HOSTS: Argument = Argument { name: "hosts", aliases: &[], help: "Host types" };
const AUTHORIZATION: Argument = Argument {
    name: "authorization",
    aliases: &[],
    help: "Who may call the service; without a service, what applies to services without rules",
};
const GATEWAY_BACKEND: Argument = Argument {
    name: "gateway-backend",
    aliases: &["gateway-backends", "gatewaybackend"],
    help: "A backend of a gateway; the audit log has its history",
};
const GATEWAY_QUOTA: Argument = Argument {
    name: "gateway-quota",
    aliases: &["gateway-quotas", "gatewayquota"],
    help: "What a tenant may have at a gateway; the audit log has its history",
};
const GATEWAY_SERVICE: Argument = Argument {
    name: "gateway-service",
    aliases: &["gateway-services", "gatewayservice"],
    help: "How the service uses a gateway with backends",
};
const POLICY_DEFAULTS: Argument = Argument {
    name: "policy-defaults",
    aliases: &["policydefaults"],
    help: "Defaults for the policies of a tenant; without a tenant, of the mesh. The audit log has their history",
};
const ROLE: Argument = Argument {
    name: "role",
    aliases: &["roles", "rolebinding"],
    help: "Who may do what with the records; the audit log has its history",
};

/// The argument that names a kind; `None` for kinds without a history. A new kind without a match arm does not compile.
const fn argument(kind: RecordKind) -> Option<&'static Argument> {
    Some(match kind {
        RecordKind::Service => &SERVICE,
        RecordKind::Policy => &POLICY,
        RecordKind::Workload => &WORKLOAD,
        RecordKind::Regions | RecordKind::RoundTrips => &TOPOLOGY,
        RecordKind::Hosts => &HOSTS,
        RecordKind::Authorization | RecordKind::DefaultAuthorization => &AUTHORIZATION,
        RecordKind::PolicyDefaults => &POLICY_DEFAULTS,
        RecordKind::RoleBinding => &ROLE,
        RecordKind::GatewayBackend => &GATEWAY_BACKEND,
        RecordKind::GatewayQuota => &GATEWAY_QUOTA,
        RecordKind::GatewayService => &GATEWAY_SERVICE,
        RecordKind::Endpoint
        | RecordKind::Health
        | RecordKind::Move
        | RecordKind::Placement
        | RecordKind::RegionTable
        | RecordKind::ShardMap
        | RecordKind::MeasuredDistances
        | RecordKind::RegionDrain
        | RecordKind::Checker
        | RecordKind::TrustBundle
        | RecordKind::Revocations
        | RecordKind::FederatedDomains
        | RecordKind::TokenIssuers
        | RecordKind::JoinedAgent
        | RecordKind::History
        | RecordKind::MeshHistory => return None,
    })
}

// A kind with a history but without an argument does not compile.
const _: () = {
    let mut rest = RecordKind::ALL;
    while let [kind, more @ ..] = rest {
        assert!(argument(*kind).is_some() == kind.history_name().is_some());
        rest = more;
    }
};

/// All arguments, each once.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let mut kinds: Vec<Kind> = RecordKind::ALL.iter().filter_map(|kind| argument(*kind).map(Kind)).collect();
    let mut named = Vec::new();
    kinds.retain(|kind| {
        let is_new = !named.contains(&kind.name());
        named.push(kind.name());
        is_new
    });
    kinds
});

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        &KINDS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let Argument { name, aliases, help, .. } = self.0;
        Some(PossibleValue::new(*name).aliases(aliases.iter().copied()).help(*help))
    }
}

impl Kind {
    /// Name of the argument.
    pub(super) const fn name(self) -> &'static str {
        self.0.name
    }

    /// Name of the `fairmesh get` list that shows the records.
    pub(super) fn list(self) -> String {
        let lists = self.records().filter_map(get::list_of).next();
        // Every kind with an argument is in a list.
        lists
            .and_then(|list| list.to_possible_value())
            .map_or_else(String::new, |list| list.get_name().to_owned())
    }

    /// Whether the argument names this kind of record.
    pub(super) fn includes(self, kind: RecordKind) -> bool {
        argument(kind).is_some_and(|argument| argument.name == self.name())
    }

    /// The kinds of records that the argument names.
    pub(super) fn records(self) -> impl Iterator<Item = RecordKind> {
        RecordKind::ALL.iter().copied().filter(move |kind| self.includes(*kind))
    }
}
