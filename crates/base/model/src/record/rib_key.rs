//! The keys of the RIB. A key consists of segments joined by `/`. Segments contain no `/`, since names cannot.

use std::fmt;

use crate::{DefaultsScope, InstanceId, Invalid, Label, Region, ServiceName, ShardId, Tenant};

use super::{ChunkHash, KindScope, RecordKind, ShardPart};

macro_rules! keys {
    (
        service { $(
            $(#[$service_doc:meta])*
            $service_key:ident $(($($service_field:ident: $service_segment:ty),+))? at $folder:literal
            => $service_value:ident($service_type:ident) $service_rules:tt
        )* }
        mesh { $(
            $(#[$doc:meta])*
            $key:ident $(($($field:ident: $segment:ty),+))? at [$first:literal $(, $more:literal)*]
            => $value:ident($type:ident) $rules:tt
        )* }
    ) => {
        /// The key of a record.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum RecordKey {
            $(
                $(#[$service_doc])*
                #[doc = concat!(
                    "\n\n`/t/{tenant}/", $folder, "/{service}" $($(, "/{", stringify!($service_field), "}")+)?, "`"
                )]
                $service_key(ServiceName $($(, $service_segment)+)?),
            )*
            $(
                $(#[$doc])*
                #[doc = concat!(
                    "\n\n`/g/", $first $(, "/", $more)* $($(, "/{", stringify!($field), "}")+)?, "`"
                )]
                $key $(($($segment),+))?,
            )*
            /// The manifest of a part of a shard map: its version, and the names of its chunks.
            ///
            /// `/t/{tenant}/shards/{service}/{part}/manifest`
            ShardManifest(ServiceName, ShardPart),
            /// A chunk of a part of a shard map.
            ///
            /// `/t/{tenant}/shards/{service}/{part}/chunks/{hash}`
            ShardChunk(ServiceName, ShardPart, ChunkHash),
            /// An earlier value of a service's record, for kinds with history records. Outside the prefixes that
            /// routers read.
            ///
            /// `/t/{tenant}/history/{kind}/{service}/{revision}`
            History(RecordKind, ServiceName, u64),
            /// An earlier value of a mesh record, for kinds with history records.
            ///
            /// `/g/history/{kind}/{revision}`
            MeshHistory(RecordKind, u64),
        }

        impl RecordKey {
            /// The kind of the record.
            pub const fn kind(&self) -> RecordKind {
                match self {
                    $(Self::$service_key(..) => RecordKind::$service_key,)*
                    $(Self::$key { .. } => RecordKind::$key,)*
                    Self::ShardManifest(..) | Self::ShardChunk(..) => RecordKind::ShardMap,
                    Self::History(..) => RecordKind::History,
                    Self::MeshHistory(..) => RecordKind::MeshHistory,
                }
            }

            /// The service to which the record belongs; `None` for mesh records.
            pub const fn service(&self) -> Option<&ServiceName> {
                match self {
                    $(Self::$service_key(service, ..))|*
                    | Self::ShardManifest(service, _)
                    | Self::ShardChunk(service, ..)
                    | Self::History(_, service, _) => Some(service),
                    $(Self::$key { .. })|* | Self::MeshHistory(..) => None,
                }
            }

            /// Parses the segments of a key below `/t/{tenant}/{folder}/{service}`.
            fn read_of_service(folder: &str, service: ServiceName, fields: &[&str]) -> Option<Self> {
                Some(match (folder, fields) {
                    $(($folder, [$($($service_field),+)?]) => {
                        Self::$service_key(service $($(, $service_field.parse().ok()?)+)?)
                    })*
                    ("shards", [part, "manifest"]) => Self::ShardManifest(service, ShardPart::read(part)?),
                    ("shards", [part, "chunks", hash]) if hash.len() == 32 => {
                        let hash = ChunkHash(u128::from_str_radix(hash, 16).ok()?);
                        Self::ShardChunk(service, ShardPart::read(part)?, hash)
                    }
                    _ => return None,
                })
            }

            /// Parses the segments of a key below `/g/`.
            fn read_of_mesh(segments: &[&str]) -> Option<Self> {
                Some(match segments {
                    $([$first $(, $more)* $($(, $field)+)?] => Self::$key $(($($field.parse().ok()?),+))?,)*
                    ["history", kind, revision] => {
                        Self::MeshHistory(kept_kind(KindScope::Mesh, kind)?, revision.parse().ok()?)
                    }
                    _ => return None,
                })
            }
        }

        impl fmt::Display for RecordKey {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$service_key(ServiceName { tenant, service } $($(, $service_field)+)?) => {
                        write!(f, concat!("/t/{}/", $folder, "/{}"), tenant, service)?;
                        $($(write!(f, "/{}", $service_field)?;)+)?
                    })*
                    $(Self::$key $(($($field),+))? => {
                        f.write_str(concat!("/g/", $first $(, "/", $more)*))?;
                        $($(write!(f, "/{}", $field)?;)+)?
                    })*
                    Self::ShardManifest(ServiceName { tenant, service }, part) => {
                        write!(f, "/t/{tenant}/shards/{service}/{part}/manifest")?;
                    }
                    Self::ShardChunk(ServiceName { tenant, service }, part, hash) => {
                        write!(f, "/t/{tenant}/shards/{service}/{part}/chunks/{hash}")?;
                    }
                    // Padded, so that keys sort by revision.
                    Self::History(kind, ServiceName { tenant, service }, revision) => {
                        let kind = kind.kept_name().unwrap_or_default();
                        write!(f, "/t/{tenant}/history/{kind}/{service}/{revision:020}")?;
                    }
                    Self::MeshHistory(kind, revision) => {
                        write!(f, "/g/history/{}/{revision:020}", kind.kept_name().unwrap_or_default())?;
                    }
                }
                Ok(())
            }
        }
    };
}

crate::record_kinds!(keys);

impl RecordKey {
    /// The key of a record with history. `kind` is the kind's name in the admin API, and `name` is a service, a role
    /// binding, or another name in the key.
    ///
    /// # Errors
    /// If the kind has no history, or `name` is malformed.
    pub fn with_history(kind: &str, name: &str) -> Result<Self, Invalid> {
        let Some(kind) = RecordKind::with_history(kind) else {
            let names: Vec<_> = RecordKind::ALL.iter().filter_map(|kind| kind.history_name()).collect();
            let problem = format!("'{kind}' has no history");
            return Err(Invalid::new("kind", problem, format!("write one of {}", names.join(", "))));
        };
        let within = |error: Invalid| error.within("service");
        let text = match (kind.scope(), kind.is_single()) {
            (KindScope::Service, _) => kind.prefix_of(&ServiceName::new(name).map_err(within)?).to_string(),
            (KindScope::Mesh, true) => format!("/g/{}", kind.path()),
            (KindScope::Mesh, false) if kind == RecordKind::PolicyDefaults => {
                Self::PolicyDefaults(DefaultsScope::named(name).map_err(within)?).to_string()
            }
            (KindScope::Mesh, false) => format!("/g/{}/{}", kind.path(), Label::new(name).map_err(within)?),
        };
        Self::parse(&text)
    }

    /// Parses a key of the RIB.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::read(text).ok_or_else(|| {
            Invalid::new(
                "key",
                format!("'{text}' is not a RIB key"),
                "write a key such as /t/shop/services/cart or /t/shop/endpoints/cart/eu/cart-0",
            )
        })
    }

    fn read(text: &str) -> Option<Self> {
        let segments: Vec<&str> = text.strip_prefix('/')?.split('/').collect();
        let named = |tenant: &str, service: &str| -> Option<ServiceName> {
            Some(ServiceName { tenant: Tenant::new(tenant).ok()?, service: Label::new(service).ok()? })
        };
        match segments[..] {
            ["g", ref segments @ ..] => Self::read_of_mesh(segments),
            ["t", tenant, "history", kind, service, revision] => {
                let kind = kept_kind(KindScope::Service, kind)?;
                Some(Self::History(kind, named(tenant, service)?, revision.parse().ok()?))
            }
            ["t", tenant, folder, service, ref fields @ ..] => {
                Self::read_of_service(folder, named(tenant, service)?, fields)
            }
            _ => None,
        }
    }
}

/// The kind whose history records have this name.
fn kept_kind(scope: KindScope, name: &str) -> Option<RecordKind> {
    RecordKind::with_history(name).filter(|kind| kind.scope() == scope && kind.kept_name().is_some())
}
