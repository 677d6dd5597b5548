//! Reads records of the RIB as views.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use fairmesh_model::{Invalid, Prefix, Record, RecordKey, RecordKind, ServiceName};
use fairmesh_wire::{handshake::Connection, record_encoding};

pub use fairmesh_views::{ALL_TENANTS, At, Scope, ServiceView, View, age_of, every_kind, instant, table_age};

use crate::{
    failure::Failure,
    output,
    rib_reader::{self, StoredRecord},
};

/// Reads views over a connection. Every method but [`read_complete`](Self::read_complete) leaves out records that this
/// release cannot decode, and warns of each of them once in a process.
#[allow(async_fn_in_trait, reason = "commands await it where they call it")]
pub trait ReadView: Sized {
    /// Reads the records of `scope` of these kinds, and the topology.
    async fn read(connection: &Connection, scope: &Scope, kinds: &[RecordKind]) -> Result<Self, Failure>;

    /// Like [`read`](Self::read), but fails if a record cannot be decoded, for decisions that would be wrong without it.
    async fn read_complete(
        connection: &Connection,
        scope: &Scope,
        kinds: &[RecordKind],
    ) -> Result<Self, Failure>;

    /// Like [`read`](Self::read), without warnings.
    async fn read_silently(
        connection: &Connection,
        scope: &Scope,
        kinds: &[RecordKind],
    ) -> Result<Self, Failure>;

    /// Reads only the topology.
    async fn topology(connection: &Connection) -> Result<Self, Failure>;

    /// Also reads region drains. The view stays without drains if the caller may not read them, or if an older control
    /// plane does not have them.
    async fn add_drains(&mut self, connection: &Connection) -> Result<(), Failure>;

    /// Reads only role bindings.
    async fn roles(connection: &Connection) -> Result<Self, Failure>;

    /// Reads only the backends of the gateway.
    async fn gateway_backends(connection: &Connection) -> Result<Self, Failure>;

    /// Reads only the gateway quotas of tenants.
    async fn gateway_quotas(connection: &Connection) -> Result<Self, Failure>;

    /// Reads only policy defaults.
    async fn policy_defaults(connection: &Connection, scope: &Scope) -> Result<Self, Failure>;

    /// The records of a service; fails if there are none.
    fn service(&self, name: &ServiceName) -> Result<&ServiceView, Failure>;
}

impl ReadView for View {
    async fn read(connection: &Connection, scope: &Scope, kinds: &[RecordKind]) -> Result<Self, Failure> {
        Ok(warned(Self::read_silently(connection, scope, kinds).await?))
    }

    async fn read_complete(
        connection: &Connection,
        scope: &Scope,
        kinds: &[RecordKind],
    ) -> Result<Self, Failure> {
        Ok(Self::read_silently(connection, scope, kinds).await?.complete()?)
    }

    async fn read_silently(
        connection: &Connection,
        scope: &Scope,
        kinds: &[RecordKind],
    ) -> Result<Self, Failure> {
        let mut stored = rib_reader::read(connection, &Self::prefixes(scope, kinds)).await?;
        match rib_reader::read(connection, &scope.policy_defaults()).await {
            Ok(defaults) => stored.extend(defaults),
            // A control plane of the previous release refuses the request, and has none.
            Err(failure) if failure.is_refusal() => {}
            Err(failure) => return Err(failure),
        }
        let mut view = Self::of_readable(stored);
        // The scope of all services reads every kind.
        view.unreadable.retain(|key, _| key.service().is_none() || kinds.contains(&key.kind()));
        Ok(view)
    }

    async fn topology(connection: &Connection) -> Result<Self, Failure> {
        let prefixes = [Prefix::topology(), Prefix::from(&RecordKey::DefaultAuthorization)];
        readable(connection, &prefixes).await
    }

    async fn add_drains(&mut self, connection: &Connection) -> Result<(), Failure> {
        match readable(connection, &[Prefix::drains()]).await {
            Ok(view) => self.drains = view.drains,
            Err(failure) => output::note(format!("drains of regions are not shown: {}", failure.message())),
        }
        Ok(())
    }

    async fn roles(connection: &Connection) -> Result<Self, Failure> {
        readable(connection, &[Prefix::roles()]).await
    }

    async fn gateway_backends(connection: &Connection) -> Result<Self, Failure> {
        readable(connection, &[Prefix::gateway_backends()]).await
    }

    async fn gateway_quotas(connection: &Connection) -> Result<Self, Failure> {
        readable(connection, &[Prefix::gateway_quotas()]).await
    }

    async fn policy_defaults(connection: &Connection, scope: &Scope) -> Result<Self, Failure> {
        readable(connection, &scope.policy_defaults()).await
    }

    fn service(&self, name: &ServiceName) -> Result<&ServiceView, Failure> {
        self.services.get(name).ok_or_else(|| {
            Failure::failed_with(
                format!("there is no service {name}"),
                "list services with 'fairmesh get services', or declare it with 'fairmesh apply'",
            )
        })
    }
}

async fn readable(connection: &Connection, prefixes: &[Prefix]) -> Result<View, Failure> {
    Ok(warned(View::of_readable(rib_reader::read(connection, prefixes).await?)))
}

fn warned(view: View) -> View {
    warn_of_unreadable(&view, |_| None);
    view
}

/// Keys of unreadable records that this process has warned of: commands that wait or watch read them repeatedly.
static WARNED: Mutex<BTreeSet<RecordKey>> = Mutex::new(BTreeSet::new());

/// Warns of each unreadable record of the view, once in a process. `meaning` says what follows for the command, if more
/// than that it leaves the record out.
pub fn warn_of_unreadable(view: &View, meaning: impl Fn(&RecordKey) -> Option<String>) {
    for (key, invalid) in &view.unreadable {
        let is_new = WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        if is_new {
            let meaning = meaning(key).unwrap_or_else(|| left_out(key, &invalid.hint));
            output::warn(format!("{} cannot be read: {}; {meaning}", invalid.field, invalid.problem));
        }
    }
}

/// Decodes a record that no view has. Warns of one that cannot be decoded, and returns `None`.
pub fn decode_or_warn(stored: &StoredRecord) -> Option<Record> {
    let decoded = record_encoding::decode(&stored.key, &stored.value);
    let warn = |invalid: &Invalid| {
        let invalid = invalid.clone().within(stored.key.to_string());
        let unreadable = [(stored.key.clone(), invalid)].into();
        warn_of_unreadable(&View { unreadable, ..View::default() }, |_| None);
    };
    decoded.inspect_err(warn).ok()
}

fn left_out(key: &RecordKey, hint: &str) -> String {
    match effect_of_unreadable(key) {
        Some(effect) => format!("this command leaves it out, and {effect}; {hint}"),
        None => format!("this command leaves it out; {hint}"),
    }
}

/// Returns what processes do that cannot read this record either, if that is not the same for all kinds of records.
pub fn effect_of_unreadable(key: &RecordKey) -> Option<String> {
    match key {
        RecordKey::Policy(name) => {
            Some(format!("processes that know no earlier policy of {name} refuse its calls"))
        }
        RecordKey::DefaultAuthorization => {
            Some("processes that know no earlier value refuse calls that no rule allows".to_owned())
        }
        RecordKey::Revocations => {
            Some("processes that have read no earlier one refuse callers and servers of services".to_owned())
        }
        _ => None,
    }
}
