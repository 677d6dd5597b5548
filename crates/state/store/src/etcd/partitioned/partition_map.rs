//! Maps services to partitions. Pure.

use std::collections::BTreeMap;

use fairmesh_model::arith::hash_text;

use crate::EtcdAddress;

/// Index of the home partition. The home contains the map itself and the records that belong to no service.
pub(super) const HOME: usize = 0;
/// First line of an encoded map.
const HEADER: &str = "fairmesh partitions 1";
/// Maximum number of partitions.
pub(super) const MAX_PARTITIONS: usize = 64;
/// Maximum number of services assigned by name, which bounds the size of the map's value.
pub(super) const MAX_NAMED: usize = 2000;

/// The partitions of a store and the services of each. Services are assigned either by name or by the range of a hash
/// of their name.
///
/// Ranges are used instead of a hash modulo the number of partitions, so that a split moves as few services as
/// possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionMap {
    /// Version of the map; each change increments it.
    pub(super) version: u64,
    /// All partitions, with the home first.
    pub(super) entries: Vec<PartitionEntry>,
    /// Start of each range, ascending from 0, with the index of its partition.
    ranges: Vec<(u64, usize)>,
    /// Services assigned by name, as `tenant/service`.
    named: BTreeMap<String, usize>,
}

/// One partition of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionEntry {
    /// Identifies the partition, and is part of its identity in etcd.
    pub(super) token: u64,
    /// Address of the partition's cluster; `None` for the home, which contains the map.
    pub(super) address: Option<EtcdAddress>,
}

/// The services that a split moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MoveScope {
    /// The listed services, as `tenant/service`.
    Services(Vec<String>),
    /// All services whose hash is in this range: inclusive start, and exclusive end if any.
    Range(u64, Option<u64>),
}

impl PartitionMap {
    /// Creates a map with every service in the home.
    pub(super) fn home() -> Self {
        let parts = vec![PartitionEntry { token: 0, address: None }];
        Self { version: 1, entries: parts, ranges: vec![(0, HOME)], named: BTreeMap::new() }
    }

    /// Returns the partition of a key.
    pub(super) fn partition_of(&self, key: &str) -> usize {
        service(key).map_or(HOME, |service| self.partition_of_service(&service))
    }

    /// Returns the partition of a service.
    pub(super) fn partition_of_service(&self, service: &str) -> usize {
        self.named.get(service).copied().unwrap_or_else(|| self.partition_at(hash_text(service)))
    }

    /// Whether a service is assigned by name.
    pub(super) fn is_named(&self, service: &str) -> bool {
        self.named.contains_key(service)
    }

    /// Returns every range: start, end if any, and partition.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, Option<u64>, usize)> {
        let ends = self.ranges.iter().skip(1).map(|(from, _)| Some(*from)).chain([None]);
        self.ranges.iter().zip(ends).map(|((from, part), until)| (*from, until, *part))
    }

    fn partition_at(&self, hash: u64) -> usize {
        let rest = self.ranges.partition_point(|(from, _)| *from <= hash);
        self.ranges[..rest].last().map_or(HOME, |(_, part)| *part)
    }

    /// Returns the map after a move to a partition. `address` is set if the partition is new.
    pub(super) fn with_move(&self, scope: &MoveScope, to: usize, address: Option<PartitionEntry>) -> Self {
        let mut map = Self { version: self.version + 1, ..self.clone() };
        map.entries.extend(address);
        match scope {
            MoveScope::Services(services) => {
                map.named.extend(services.iter().map(|service| (service.clone(), to)));
            }
            MoveScope::Range(from, until) => map.assign_range(*from, *until, to),
        }
        map
    }

    fn assign_range(&mut self, from: u64, until: Option<u64>, to: usize) {
        let rest = until.map(|until| (until, self.partition_at(until)));
        self.ranges.retain(|(start, _)| *start < from || until.is_some_and(|until| *start > until));
        self.ranges.extend([(from, to)].into_iter().chain(rest));
        self.ranges.sort_unstable();
        self.ranges.dedup_by_key(|(_, part)| *part);
    }

    /// Encodes the map as human-readable text.
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{HEADER}\nversion {}\n", self.version);
        for PartitionEntry { token, address } in &self.entries {
            let address = address.as_ref().map_or("home".into(), ToString::to_string);
            text += &format!("part {token:016x} {address}\n");
        }
        for (from, part) in &self.ranges {
            text += &format!("range {from:016x} {part}\n");
        }
        for (service, part) in &self.named {
            text += &format!("service {service} {part}\n");
        }
        text
    }

    /// Decodes the result of [`PartitionMap::encode`]; `None` if malformed.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut map = Self { version: 0, entries: Vec::new(), ranges: Vec::new(), named: BTreeMap::new() };
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["version", version] => map.version = version.parse().ok()?,
                ["part", token, address] => {
                    let token = u64::from_str_radix(token, 16).ok()?;
                    let address = (address != "home").then(|| address.parse()).transpose().ok()?;
                    map.entries.push(PartitionEntry { token, address });
                }
                ["range", from, part] => {
                    map.ranges.push((u64::from_str_radix(from, 16).ok()?, part.parse().ok()?));
                }
                ["service", service, part] => {
                    map.named.insert(service.into(), part.parse().ok()?);
                }
                _ => return None,
            }
        }
        map.is_valid().then_some(map)
    }

    fn is_valid(&self) -> bool {
        let mut used = self.ranges.iter().map(|(_, part)| *part).chain(self.named.values().copied());
        self.version > 0
            && self
                .entries
                .iter()
                .map(|part| part.address.is_none())
                .eq((0..self.entries.len()).map(|i| i == HOME))
            && self.ranges.first().is_some_and(|(from, _)| *from == 0)
            && self.ranges.is_sorted_by(|(before, _), (after, _)| before < after)
            && used.all(|part| part < self.entries.len())
    }
}

/// Returns the service of a key, as `tenant/service`. All records of a service are in the same partition. The service
/// follows from the form of the key alone, so that record kinds of later releases map the same way.
pub(super) fn service(key: &str) -> Option<String> {
    let mut segments = key.strip_prefix("/t/")?.split('/');
    let tenant = segments.next()?;
    let service = match segments.next()? {
        // /t/{tenant}/history/{kind}/{service}/…
        "history" => segments.nth(1)?,
        _ => segments.next()?,
    };
    Some(format!("{tenant}/{service}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(token: u64) -> PartitionEntry {
        PartitionEntry { token, address: Some(format!("etcd://e{token}:2379/m").parse().unwrap()) }
    }

    #[test]
    fn records_of_service_share_partition_and_others_stay_in_home_partition() {
        for key in [
            "/t/shop/services/cart",
            "/t/shop/endpoints/cart/eu/a",
            "/t/shop/history/policies/cart/00000000000000000007",
            "/t/shop/shards/cart/ranges/manifest",
            "/t/shop/whatever/cart",
        ] {
            assert_eq!(service(key).as_deref(), Some("shop/cart"), "{key}");
        }
        assert_eq!(service("/g/topology/regions"), None);
    }

    #[test]
    fn partition_move_reassigns_only_given_range_or_services() {
        let half = PartitionMap::home().with_move(&MoveScope::Range(1 << 63, None), 1, Some(part(7)));
        let quarter = half.with_move(&MoveScope::Range(1 << 62, Some(1 << 63)), 2, Some(part(8)));
        let owners = |map: &PartitionMap| {
            [0, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX].map(|hash| map.partition_at(hash))
        };
        assert_eq!(owners(&half), [0, 0, 0, 0, 1, 1]);
        assert_eq!(owners(&quarter), [0, 0, 2, 2, 1, 1]);
        let back = quarter.with_move(&MoveScope::Range(1 << 62, Some(1 << 63)), 0, None);
        assert_eq!(owners(&back), owners(&half));
        assert_eq!((back.version, back.ranges().count()), (4, 2));
        let named = back.with_move(&MoveScope::Services(vec!["shop/cart".into()]), 2, None);
        assert_eq!((named.partition_of("/t/shop/services/cart"), owners(&named)), (2, owners(&half)));
        assert_eq!(PartitionMap::decode(&named.encode()), Some(named));
    }

    #[test]
    fn invalid_partition_map_is_refused() {
        let sound =
            PartitionMap::home().with_move(&MoveScope::Range(1 << 63, None), 1, Some(part(7))).encode();
        assert!(PartitionMap::decode(&sound).is_some());
        for (from, to) in [
            ("partitions 1", "partitions 2"),
            ("version 2", "version"),
            ("range 0000000000000000 0", "range 0000000000000001 0"),
            ("range 8000000000000000 1", "range 8000000000000000 2"),
            ("home", "etcd://a/b"),
        ] {
            assert_eq!(PartitionMap::decode(&sound.replace(from, to)), None, "{to}");
        }
    }
}
