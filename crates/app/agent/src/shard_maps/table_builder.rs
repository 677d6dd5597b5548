//! Builds the tables of a map segment by segment: at most one segment is in memory twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use fairmesh_model::{
    ChunkHash, InstanceId, Invalid, KeyRange, Region, ReplicaState, Role, ShardId, ShardKey, ShardPart,
    StoreId,
};
use fairmesh_router::{HoldingInterner, SEGMENT_SHARDS, Segment, SegmentBuilder, SegmentMemory};
use fairmesh_shared_memory::SealedMemory;
use fairmesh_wire::shard_encoding::{Copies, read_copies, read_ranges};

use super::map_records::{BuildError, Manifests, MapRecords};

/// Marks a holder seen in several regions.
const MULTIPLE_REGIONS: u16 = u16::MAX;
/// The holder list is rebuilt when it exceeds twice its original length plus this number.
const MAX_SPARE_HOLDERS: usize = 4096;
/// The widest span of shard ids indexed by an array instead of a hash map.
const MAX_DENSE_SPAN: u32 = 1 << 22;

/// The tables of one version of a map.
#[derive(Debug)]
pub(crate) struct BuiltMap {
    pub(crate) version: u64,
    pub(crate) interval: KeyRange,
    pub(crate) segments: Vec<Arc<SharedTable>>,
    pub(crate) holders: Arc<SharedTable>,
    /// Number of listed holders.
    listed: usize,
    store: StoreId,
    ranges: Vec<ChunkHash>,
    regions: BTreeMap<Region, Vec<ChunkHash>>,
}

/// A table in shared memory.
#[derive(Debug)]
pub(crate) struct SharedTable {
    pub(crate) id: u64,
    pub(crate) memory: Arc<SealedMemory>,
    /// Content of the memory, if it is a segment.
    segment: Option<Segment>,
}

/// Builds the versions of one map, each from its predecessor where possible.
pub(super) struct Builder {
    next_table: Box<dyn Fn() -> u64 + Send>,
    numbers: HoldingInterner,
    /// The region of each holder, as an index into `regions`.
    holder_regions: Vec<u16>,
    regions: Vec<Region>,
    /// Number of holders at the last full rebuild. `None` before the first and after a failed one, when holder numbers
    /// differ from the previous version's.
    holders_at_rebuild: Option<usize>,
    /// First and last shard of each chunk of copies.
    spans: HashMap<ChunkHash, (ShardId, ShardId)>,
    /// First and last start key of each chunk of ranges.
    starts: HashMap<ChunkHash, (ShardKey, ShardKey)>,
}

/// The shards of a segment to build.
struct SegmentDraft {
    range: KeyRange,
    shards: Vec<(ShardId, ShardKey)>,
}

/// Changes between two versions: start keys of shards, and copies in each region.
struct Changes {
    /// First and last start key of removed chunks; all their shards are removed.
    gone: Vec<(ShardKey, ShardKey)>,
    /// The shards of new chunks.
    new: Vec<(ShardId, ShardKey)>,
    copies: Vec<CopyChange>,
}

/// Changed copies in one region.
struct CopyChange {
    region: u16,
    spans: Vec<(ShardId, ShardId)>,
    /// Holders of the shards in new chunks.
    now: HashMap<ShardId, Vec<u32>>,
}

impl BuiltMap {
    /// Whether the tables were built from these parts.
    pub(super) fn is(&self, source: &MapRecords, parts: &Manifests) -> bool {
        let regions = parts.regions.iter().map(|(region, part)| (region, &part.chunks));
        (self.version, self.store, self.interval) == (parts.version, source.store, parts.interval)
            && self.ranges == parts.ranges.chunks
            && self.regions.iter().eq(regions)
    }

    pub(crate) fn bytes(&self) -> usize {
        let tables = self.segments.iter().chain([&self.holders]);
        tables.map(|table| AsRef::<[u8]>::as_ref(&*table.memory).len()).sum()
    }
}

impl Builder {
    pub(super) fn new(next_table: impl Fn() -> u64 + Send + 'static) -> Self {
        Self {
            next_table: Box::new(next_table),
            numbers: HoldingInterner::default(),
            holder_regions: Vec::new(),
            regions: Vec::new(),
            holders_at_rebuild: None,
            spans: HashMap::new(),
            starts: HashMap::new(),
        }
    }

    /// Builds the tables of `source`, reusing unchanged tables of `before`.
    pub(super) fn build(
        &mut self,
        source: &MapRecords,
        parts: &Manifests,
        before: Option<&BuiltMap>,
    ) -> Result<BuiltMap, BuildError> {
        let changes = match before {
            Some(before) => self.changes(source, parts, before)?,
            None => None,
        };
        let segments = match before.zip(changes) {
            Some((before, changes)) => self.update_segments(source, parts, before, &changes)?,
            None => None,
        };
        let reused = segments.is_some();
        let segments = match segments {
            Some(segments) => segments,
            None => self.rebuild(source, parts)?,
        };
        let listed = self.numbers.len();
        let holders = match before {
            Some(before) if reused && before.listed == listed => Arc::clone(&before.holders),
            _ => self.holders(source.store)?,
        };
        let named: HashSet<&ChunkHash> = parts.regions.values().flat_map(|part| &part.chunks).collect();
        self.spans.retain(|hash, _| named.contains(hash));
        let named: HashSet<&ChunkHash> = parts.ranges.chunks.iter().collect();
        self.starts.retain(|hash, _| named.contains(hash));
        Ok(BuiltMap {
            listed,
            version: parts.version,
            interval: parts.interval,
            segments,
            holders,
            store: source.store,
            ranges: parts.ranges.chunks.clone(),
            regions: parts
                .regions
                .iter()
                .map(|(region, part)| (region.clone(), part.chunks.clone()))
                .collect(),
        })
    }

    fn holders(&self, store: StoreId) -> Result<Arc<SharedTable>, BuildError> {
        let memory = Arc::new(SealedMemory::seal_bytes("fairmesh-holders", &self.numbers.encode(store))?);
        Ok(Arc::new(SharedTable { id: (self.next_table)(), memory, segment: None }))
    }

    /// Builds every segment anew.
    fn rebuild(
        &mut self,
        source: &MapRecords,
        parts: &Manifests,
    ) -> Result<Vec<Arc<SharedTable>>, BuildError> {
        (self.numbers, self.holder_regions, self.regions, self.holders_at_rebuild) = Default::default();
        let (mut segments, mut copies) = (Vec::new(), 0);
        let mut shards: Vec<(ShardId, ShardKey)> = Vec::new();
        let mut seen = 0;
        let mut first = parts.interval.first;
        for &hash in &parts.ranges.chunks {
            let from = shards.len();
            self.read_ranges(source, hash, &mut shards)?;
            seen += shards.len() - from;
            check_order(&shards[from.saturating_sub(1)..], parts.interval)?;
            while shards.len() > SEGMENT_SHARDS {
                let rest = shards.split_off(SEGMENT_SHARDS);
                let range = KeyRange { first, last: ShardKey(rest[0].1.0 - 1) };
                first = rest[0].1;
                let draft = SegmentDraft { range, shards: std::mem::replace(&mut shards, rest) };
                segments.push(self.segment(source, parts, &draft, &mut copies)?);
            }
        }
        if shards.is_empty()
            || seen != parts.ranges.rows as usize
            || segments.is_empty() && shards[0].1 != first
        {
            let problem = "the chunks do not match the manifest";
            return Err(Invalid::new("ranges", problem, "write the shard map again").into());
        }
        let draft = SegmentDraft { range: KeyRange { first, last: parts.interval.last }, shards };
        segments.push(self.segment(source, parts, &draft, &mut copies)?);
        if copies != parts.regions.values().map(|part| u64::from(part.rows)).sum::<u64>() {
            let problem = "some belong to missing shards";
            return Err(Invalid::new("copies", problem, "write the shard map again").into());
        }
        self.holders_at_rebuild = Some(self.numbers.len());
        Ok(segments)
    }

    /// Rebuilds only the changed segments; `None` if a full rebuild is better.
    ///
    /// Splits may grow a segment to twice its original size.
    fn update_segments(
        &mut self,
        source: &MapRecords,
        parts: &Manifests,
        before: &BuiltMap,
        changes: &Changes,
    ) -> Result<Option<Vec<Arc<SharedTable>>>, BuildError> {
        let mut segments = Vec::with_capacity(before.segments.len());
        let mut seen = 0;
        for table in &before.segments {
            let Some(segment) = &table.segment else { return Ok(None) };
            let shards = changes.shards(segment);
            let (len, range) = (shards.as_ref().map_or(segment.len(), Vec::len), segment.range());
            seen += len;
            let begins = shards
                .as_ref()
                .is_none_or(|shards| shards.first().is_some_and(|(_, start)| *start == range.first));
            if !begins || len > 2 * SEGMENT_SHARDS {
                return Ok(None);
            }
            if shards.is_none() && !self.is_changed(segment, &changes.copies) {
                segments.push(Arc::clone(table));
                continue;
            }
            let as_it_was = || segment.shards().map(|(id, start, _)| (id, start)).collect();
            let draft = SegmentDraft { range, shards: shards.unwrap_or_else(as_it_was) };
            check_order(&draft.shards, range)?;
            segments.push(self.segment(source, parts, &draft, &mut 0)?);
        }
        Ok((seen == parts.ranges.rows as usize).then_some(segments))
    }

    fn is_changed(&self, segment: &Segment, changes: &[CopyChange]) -> bool {
        let differs = |change: &CopyChange, id: ShardId, copies: &[u32]| {
            if !change.spans.iter().any(|(first, last)| (*first..=*last).contains(&id)) {
                return false;
            }
            let here = copies.iter().filter(|copy| {
                let home = self.holder_regions.get(**copy as usize).copied().unwrap_or(MULTIPLE_REGIONS);
                home == change.region || home == MULTIPLE_REGIONS
            });
            !here.eq(change.now.get(&id).map_or(&[][..], Vec::as_slice))
        };
        let mut copies = Vec::new();
        let mut near = segment.shards().filter(|(id, _, _)| {
            changes
                .iter()
                .any(|change| change.spans.iter().any(|(first, last)| (*first..=*last).contains(id)))
        });
        near.any(|(id, _, held)| {
            copies.clear();
            copies.extend(held);
            changes.iter().any(|change| differs(change, id, &copies))
        })
    }

    /// Changes since `before`; `None` if a full rebuild is better.
    fn changes(
        &mut self,
        source: &MapRecords,
        parts: &Manifests,
        before: &BuiltMap,
    ) -> Result<Option<Changes>, BuildError> {
        let outgrown = self
            .holders_at_rebuild
            .is_none_or(|holders| self.numbers.len() > 2 * holders + MAX_SPARE_HOLDERS);
        if outgrown || (before.store, before.interval) != (source.store, parts.interval) {
            return Ok(None);
        }
        let (mut gone_starts, mut new) = (Vec::new(), Vec::new());
        for hash in missing(&before.ranges, &parts.ranges.chunks) {
            let Some(span) = self.starts.get(&hash) else { return Ok(None) };
            gone_starts.push(*span);
        }
        for hash in missing(&parts.ranges.chunks, &before.ranges) {
            self.read_ranges(source, hash, &mut new)?;
            if new.len() > SEGMENT_SHARDS {
                return Ok(None);
            }
        }
        let mut changes = Vec::new();
        let none = Vec::new();
        let gone = before.regions.keys().filter(|region| !parts.regions.contains_key(*region));
        for region in parts.regions.keys().chain(gone) {
            let old = before.regions.get(region).unwrap_or(&none);
            let new = parts.regions.get(region).map_or(&none, |part| &part.chunks);
            let (removed, added) = (missing(old, new), missing(new, old));
            if removed.is_empty() && added.is_empty() {
                continue;
            }
            let mut change =
                CopyChange { region: self.region(region), spans: Vec::new(), now: HashMap::new() };
            for hash in removed {
                let Some(span) = self.spans.get(&hash) else { return Ok(None) };
                change.spans.push(*span);
            }
            for hash in added {
                let copies = self.read_copies(source, region, hash)?;
                change.spans.extend(copies.span());
                for (shard, instance, role, state) in copies.rows() {
                    let number = self.number(change.region, instance, role, state);
                    change.now.entry(shard).or_default().push(number);
                }
            }
            changes.push(change);
        }
        Ok(Some(Changes { gone: gone_starts, new, copies: changes }))
    }

    /// Builds one table; adds its number of copies to `copies`.
    fn segment(
        &mut self,
        source: &MapRecords,
        parts: &Manifests,
        draft: &SegmentDraft,
        copies: &mut u64,
    ) -> Result<Arc<SharedTable>, BuildError> {
        let positions = ShardPositions::new(&draft.shards);
        // Position of the shard, and the holder.
        let mut found: Vec<(u32, u32)> = Vec::new();
        for (region, part) in &parts.regions {
            let home = self.region(region);
            for &hash in &part.chunks {
                if self.spans.get(&hash).is_some_and(|span| !positions.overlaps(*span)) {
                    continue;
                }
                for (shard, instance, role, state) in self.read_copies(source, region, hash)?.rows() {
                    if let Some(place) = positions.of(shard) {
                        found.push((place, self.number(home, instance, role, state)));
                    }
                }
            }
        }
        *copies += found.len() as u64;
        // A stable sort keeps the order of regions.
        found.sort_by_key(|(place, _)| *place);
        let (mut rows, mut rest) = (SegmentBuilder::default(), &found[..]);
        for (i, (id, start)) in draft.shards.iter().enumerate() {
            let count = rest.iter().take_while(|(place, _)| *place as usize == i).count();
            let (own, others) = rest.split_at(count);
            rows.push(*id, *start, own.iter().map(|(_, holder)| *holder));
            rest = others;
        }
        let memory =
            Arc::new(SealedMemory::seal_words("fairmesh-shards", &rows.encode(source.store, draft.range))?);
        let words: SegmentMemory = memory.clone();
        let segment = Segment::read(words)?;
        Ok(Arc::new(SharedTable { id: (self.next_table)(), memory, segment: Some(segment) }))
    }

    /// Adds the shards of a chunk.
    fn read_ranges(
        &mut self,
        source: &MapRecords,
        hash: ChunkHash,
        shards: &mut Vec<(ShardId, ShardKey)>,
    ) -> Result<(), BuildError> {
        let from = shards.len();
        read(source, &ShardPart::Ranges, hash, |chunk| {
            read_ranges(hash, chunk, |id, start| shards.push((id, start)))
        })?;
        if let [(_, first), .., (_, last)] | [(_, first @ last)] = &shards[from..] {
            self.starts.insert(hash, (*first, *last));
        }
        Ok(())
    }

    fn read_copies(
        &mut self,
        source: &MapRecords,
        region: &Region,
        hash: ChunkHash,
    ) -> Result<Copies, BuildError> {
        let part = ShardPart::Region(region.clone());
        let copies = read(source, &part, hash, |chunk| read_copies(hash, chunk))?;
        if let Some(span) = copies.span() {
            self.spans.insert(hash, span);
        }
        Ok(copies)
    }

    fn region(&mut self, region: &Region) -> u16 {
        let known = self.regions.iter().position(|known| known == region);
        let place = known.unwrap_or_else(|| {
            self.regions.push(region.clone());
            self.regions.len() - 1
        });
        u16::try_from(place).unwrap_or(MULTIPLE_REGIONS)
    }

    fn number(&mut self, home: u16, instance: &InstanceId, role: &Role, state: ReplicaState) -> u32 {
        let number = self.numbers.intern(instance, role, state);
        match self.holder_regions.get_mut(number as usize) {
            Some(known) if *known != home => *known = MULTIPLE_REGIONS,
            Some(_) => {}
            None => self.holder_regions.push(home),
        }
        number
    }
}

impl Changes {
    /// The shards of a segment, if they changed.
    fn shards(&self, segment: &Segment) -> Option<Vec<(ShardId, ShardKey)>> {
        let range = segment.range();
        let gone = self.gone.iter().any(|(first, last)| *first <= range.last && range.first <= *last);
        let mut shards: Vec<_> =
            self.new.iter().filter(|(_, start)| range.contains(*start)).copied().collect();
        if !gone && shards.is_empty() {
            return None;
        }
        let before: Vec<_> = segment.shards().map(|(id, start, _)| (id, start)).collect();
        let stays =
            |start: ShardKey| !self.gone.iter().any(|(first, last)| (*first..=*last).contains(&start));
        shards.extend(before.iter().filter(|(_, start)| stays(*start)));
        shards.sort_by_key(|(_, start)| *start);
        (shards != before).then_some(shards)
    }
}

/// Reads a chunk; one that is damaged on disk counts as missing.
fn read<T>(
    source: &MapRecords,
    part: &ShardPart,
    hash: ChunkHash,
    read: impl FnOnce(&[u8]) -> Result<T, Invalid>,
) -> Result<T, BuildError> {
    read(&source.chunk(part, hash)?).map_err(|invalid| match source.is_on_disk(part, hash) {
        true => BuildError::ChunkMissing(hash),
        false => invalid.within(part.to_string()).into(),
    })
}

fn check_order(shards: &[(ShardId, ShardKey)], interval: KeyRange) -> Result<(), Invalid> {
    let ascends = shards.windows(2).all(|pair| pair[0].1 < pair[1].1);
    let inside = shards.last().is_none_or(|(_, start)| interval.contains(*start));
    if ascends && inside {
        return Ok(());
    }
    let problem = "starts do not ascend inside the interval";
    Err(Invalid::new("ranges", problem, "write the shard map again"))
}

fn missing(of: &[ChunkHash], from: &[ChunkHash]) -> Vec<ChunkHash> {
    let from: HashSet<_> = from.iter().collect();
    of.iter().filter(|hash| !from.contains(hash)).copied().collect()
}

/// Positions of shards by id.
struct ShardPositions {
    first: ShardId,
    last: ShardId,
    by: PositionIndex,
}

enum PositionIndex {
    /// Indexed by distance from the first id; `u32::MAX` marks an absent id.
    Distance(Vec<u32>),
    Id(HashMap<ShardId, u32>),
}

impl ShardPositions {
    fn new(shards: &[(ShardId, ShardKey)]) -> Self {
        let ids = shards.iter().map(|(id, _)| *id);
        let first = ids.clone().min().unwrap_or(ShardId(0));
        let last = ids.clone().max().unwrap_or(ShardId(0));
        let by = if last.0 - first.0 < MAX_DENSE_SPAN {
            let mut positions = vec![u32::MAX; (last.0 - first.0) as usize + 1];
            ids.zip(0..).for_each(|(id, place)| positions[(id.0 - first.0) as usize] = place);
            PositionIndex::Distance(positions)
        } else {
            PositionIndex::Id(ids.zip(0..).collect())
        };
        Self { first, last, by }
    }

    fn overlaps(&self, (first, last): (ShardId, ShardId)) -> bool {
        first <= self.last && self.first <= last
    }

    fn of(&self, id: ShardId) -> Option<u32> {
        match &self.by {
            PositionIndex::Distance(positions) => {
                let place = positions.get(id.0.checked_sub(self.first.0)? as usize).copied();
                place.filter(|place| *place != u32::MAX)
            }
            PositionIndex::Id(positions) => positions.get(&id).copied(),
        }
    }
}
