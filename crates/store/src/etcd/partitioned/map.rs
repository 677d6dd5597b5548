//! Which part of a store holds which service. Pure.

use std::collections::BTreeMap;

use fairmesh_model::arith::hash_text;

use crate::EtcdAddress;

/// The part that holds what belongs to no service, and the map itself.
pub(super) const HOME: usize = 0;
/// What the text of a map begins with.
const HEAD: &str = "fairmesh partitions 1";
/// The most parts.
pub(super) const MAX_PARTS: usize = 64;
/// The most services that are assigned by name: the map is one value.
pub(super) const MAX_NAMED: usize = 2000;

/// The parts of a store, and which services each holds: those named, and the others by ranges of a hash of their names.
///
/// Ranges and not one hash modulo the number of parts, since a split then moves what it has to and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionMap {
    /// Counts changes.
    pub(super) version: u64,
    /// The home first.
    pub(super) parts: Vec<Part>,
    /// Where ranges start, from 0 ascending, and whose they are.
    ranges: Vec<(u64, usize)>,
    /// Services that are assigned by name, as `tenant/service`.
    named: BTreeMap<String, usize>,
}

/// One part of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Tells it from others; what stands in its mark.
    pub(super) token: u64,
    /// Where it is; `None` of the home, which whoever reads the map has found.
    pub(super) address: Option<EtcdAddress>,
}

/// What is to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// These services.
    Services(Vec<String>),
    /// Those whose hash is at least the first number and below the second, where there is one.
    Range(u64, Option<u64>),
}

impl PartitionMap {
    /// Everything in the home.
    pub(super) fn home() -> Self {
        let parts = vec![Part { token: 0, address: None }];
        Self { version: 1, parts, ranges: vec![(0, HOME)], named: BTreeMap::new() }
    }

    /// The part that holds a key.
    pub(super) fn part(&self, key: &str) -> usize {
        service(key).map_or(HOME, |service| self.part_of(&service))
    }

    /// The part that holds a service.
    pub(super) fn part_of(&self, service: &str) -> usize {
        self.named.get(service).copied().unwrap_or_else(|| self.part_at(hash_text(service)))
    }

    /// Whether a service is assigned by name.
    pub(super) fn is_named(&self, service: &str) -> bool {
        self.named.contains_key(service)
    }

    /// Every range: where it starts, where the next does, and whose it is.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, Option<u64>, usize)> {
        let ends = self.ranges.iter().skip(1).map(|(from, _)| Some(*from)).chain([None]);
        self.ranges.iter().zip(ends).map(|((from, part), until)| (*from, until, *part))
    }

    fn part_at(&self, hash: u64) -> usize {
        let behind = self.ranges.partition_point(|(from, _)| *from <= hash);
        self.ranges[..behind].last().map_or(HOME, |(_, part)| *part)
    }

    /// The map after a move to a part, which is appended where it is new.
    pub(super) fn moved(&self, wanted: &Wanted, to: usize, address: Option<Part>) -> Self {
        let mut map = Self { version: self.version + 1, ..self.clone() };
        map.parts.extend(address);
        match wanted {
            Wanted::Services(services) => {
                map.named.extend(services.iter().map(|service| (service.clone(), to)));
            }
            Wanted::Range(from, until) => map.give(*from, *until, to),
        }
        map
    }

    fn give(&mut self, from: u64, until: Option<u64>, to: usize) {
        let behind = until.map(|until| (until, self.part_at(until)));
        self.ranges.retain(|(start, _)| *start < from || until.is_some_and(|until| *start > until));
        self.ranges.extend([(from, to)].into_iter().chain(behind));
        self.ranges.sort_unstable();
        self.ranges.dedup_by_key(|(_, part)| *part);
    }

    /// As it stands in etcd: text, for those who look.
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{HEAD}\nversion {}\n", self.version);
        for Part { token, address } in &self.parts {
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

    /// Reads [`PartitionMap::encode`]; `None` for what is not that.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut map = Self { version: 0, parts: Vec::new(), ranges: Vec::new(), named: BTreeMap::new() };
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["version", version] => map.version = version.parse().ok()?,
                ["part", token, address] => {
                    let token = u64::from_str_radix(token, 16).ok()?;
                    let address = (address != "home").then(|| address.parse()).transpose().ok()?;
                    map.parts.push(Part { token, address });
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
        map.is_sound().then_some(map)
    }

    fn is_sound(&self) -> bool {
        let mut used = self.ranges.iter().map(|(_, part)| *part).chain(self.named.values().copied());
        self.version > 0
            && self
                .parts
                .iter()
                .map(|part| part.address.is_none())
                .eq((0..self.parts.len()).map(|i| i == HOME))
            && self.ranges.first().is_some_and(|(from, _)| *from == 0)
            && self.ranges.is_sorted_by(|(before, _), (after, _)| before < after)
            && used.all(|part| part < self.parts.len())
    }
}

/// The service that a key is about, as `tenant/service`: every kind of record of one lies in one part. By the form of the
/// key alone, so that kinds of records which a later release adds are where that one looks for them.
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

    fn part(token: u64) -> Part {
        Part { token, address: Some(format!("etcd://e{token}:2379/m").parse().unwrap()) }
    }

    #[test]
    fn all_records_of_a_service_lie_together_and_what_has_none_at_home() {
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
    fn a_move_changes_what_it_names_and_nothing_else() {
        let half = PartitionMap::home().moved(&Wanted::Range(1 << 63, None), 1, Some(part(7)));
        let quarter = half.moved(&Wanted::Range(1 << 62, Some(1 << 63)), 2, Some(part(8)));
        let owners = |map: &PartitionMap| {
            [0, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX].map(|hash| map.part_at(hash))
        };
        assert_eq!(owners(&half), [0, 0, 0, 0, 1, 1]);
        assert_eq!(owners(&quarter), [0, 0, 2, 2, 1, 1]);
        let back = quarter.moved(&Wanted::Range(1 << 62, Some(1 << 63)), 0, None);
        assert_eq!(owners(&back), owners(&half));
        assert_eq!((back.version, back.ranges().count()), (4, 2));
        let named = back.moved(&Wanted::Services(vec!["shop/cart".into()]), 2, None);
        assert_eq!((named.part("/t/shop/services/cart"), owners(&named)), (2, owners(&half)));
        assert_eq!(PartitionMap::decode(&named.encode()), Some(named));
    }

    #[test]
    fn what_is_no_whole_map_is_refused() {
        let sound = PartitionMap::home().moved(&Wanted::Range(1 << 63, None), 1, Some(part(7))).encode();
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
