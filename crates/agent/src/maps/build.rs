//! Makes the tables of a map, a segment at a time: never more than one of them lies in memory twice.

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
use fairmesh_wire::shards::{Copies, read_copies, read_ranges};

use super::source::{Broken, Parts, Source};

/// The region of a holder that was met in several.
const SEVERAL: u16 = u16::MAX;
/// So many holders that nobody needs any more may be listed, besides as many as there were.
const SPARE_HOLDERS: usize = 4096;
/// The widest span of ids that is looked up by a list and not by hash.
const DENSE: u32 = 1 << 22;

/// A version of a map, as tables.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) version: u64,
    pub(crate) interval: KeyRange,
    pub(crate) segments: Vec<Arc<Table>>,
    pub(crate) holders: Arc<Table>,
    /// How many holders are listed.
    listed: usize,
    store: StoreId,
    ranges: Vec<ChunkHash>,
    regions: BTreeMap<Region, Vec<ChunkHash>>,
}

/// A table that can be handed over.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: u64,
    pub(crate) memory: Arc<SealedMemory>,
    /// What is in it, where it is a segment.
    segment: Option<Segment>,
}

/// Makes versions of one map, each from the one before where that is possible.
pub(super) struct Builder {
    next_table: Box<dyn Fn() -> u64 + Send>,
    numbers: HoldingInterner,
    /// The region of each holder, as its place in `regions`.
    homes: Vec<u16>,
    regions: Vec<Region>,
    /// How many holders there were when all was last made anew; `None` before that, and where it failed half way, so that
    /// numbers are not those of the version before.
    fresh: Option<usize>,
    /// The first and the last shard of chunks of copies.
    spans: HashMap<ChunkHash, (ShardId, ShardId)>,
    /// The first and the last start of chunks of starts.
    starts: HashMap<ChunkHash, (ShardKey, ShardKey)>,
}

/// The shards of a segment to be.
struct Draft {
    range: KeyRange,
    shards: Vec<(ShardId, ShardKey)>,
}

/// What changed: where shards start, and the copies in each region.
struct Changes {
    /// From where to where there were shards in chunks that are gone, all of which are gone with them.
    gone: Vec<(ShardKey, ShardKey)>,
    /// The shards of new chunks.
    new: Vec<(ShardId, ShardKey)>,
    copies: Vec<Change>,
}

/// What changed of the copies in one region.
struct Change {
    region: u16,
    spans: Vec<(ShardId, ShardId)>,
    /// The holders of the shards of new chunks.
    now: HashMap<ShardId, Vec<u32>>,
}

impl Built {
    /// Whether it is what these parts say.
    pub(super) fn is(&self, source: &Source, parts: &Parts) -> bool {
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
            homes: Vec::new(),
            regions: Vec::new(),
            fresh: None,
            spans: HashMap::new(),
            starts: HashMap::new(),
        }
    }

    /// The tables of what `source` holds, those that did not change taken from `before`.
    pub(super) fn build(
        &mut self,
        source: &Source,
        parts: &Parts,
        before: Option<&Built>,
    ) -> Result<Built, Broken> {
        let changes = match before {
            Some(before) => self.changes(source, parts, before)?,
            None => None,
        };
        let segments = match before.zip(changes) {
            Some((before, changes)) => self.mend(source, parts, before, &changes)?,
            None => None,
        };
        let mended = segments.is_some();
        let segments = match segments {
            Some(segments) => segments,
            None => self.make(source, parts)?,
        };
        let listed = self.numbers.len();
        let holders = match before {
            Some(before) if mended && before.listed == listed => Arc::clone(&before.holders),
            _ => self.holders(source.store)?,
        };
        let named: HashSet<&ChunkHash> = parts.regions.values().flat_map(|part| &part.chunks).collect();
        self.spans.retain(|hash, _| named.contains(hash));
        let named: HashSet<&ChunkHash> = parts.ranges.chunks.iter().collect();
        self.starts.retain(|hash, _| named.contains(hash));
        Ok(Built {
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

    fn holders(&self, store: StoreId) -> Result<Arc<Table>, Broken> {
        let memory = Arc::new(SealedMemory::seal_bytes("fairmesh-holders", &self.numbers.encode(store))?);
        Ok(Arc::new(Table { id: (self.next_table)(), memory, segment: None }))
    }

    /// Makes every segment anew.
    fn make(&mut self, source: &Source, parts: &Parts) -> Result<Vec<Arc<Table>>, Broken> {
        (self.numbers, self.homes, self.regions, self.fresh) = Default::default();
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
                let draft = Draft { range, shards: std::mem::replace(&mut shards, rest) };
                segments.push(self.segment(source, parts, &draft, &mut copies)?);
            }
        }
        if shards.is_empty()
            || seen != parts.ranges.rows as usize
            || segments.is_empty() && shards[0].1 != first
        {
            let problem = "the chunks are not those of the manifest";
            return Err(Invalid::new("ranges", problem, "write the shard map again").into());
        }
        let draft = Draft { range: KeyRange { first, last: parts.interval.last }, shards };
        segments.push(self.segment(source, parts, &draft, &mut copies)?);
        if copies != parts.regions.values().map(|part| u64::from(part.rows)).sum::<u64>() {
            let problem = "some are of shards that are not there";
            return Err(Invalid::new("copies", problem, "write the shard map again").into());
        }
        self.fresh = Some(self.numbers.len());
        Ok(segments)
    }

    /// Makes the segments anew in which something changed; `None` where all are better made anew.
    ///
    /// A segment grows by splits until it is twice as large as it was made.
    fn mend(
        &mut self,
        source: &Source,
        parts: &Parts,
        before: &Built,
        changes: &Changes,
    ) -> Result<Option<Vec<Arc<Table>>>, Broken> {
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
            let draft = Draft { range, shards: shards.unwrap_or_else(as_it_was) };
            check_order(&draft.shards, range)?;
            segments.push(self.segment(source, parts, &draft, &mut 0)?);
        }
        Ok((seen == parts.ranges.rows as usize).then_some(segments))
    }

    fn is_changed(&self, segment: &Segment, changes: &[Change]) -> bool {
        let differs = |change: &Change, id: ShardId, copies: &[u32]| {
            if !change.spans.iter().any(|(first, last)| (*first..=*last).contains(&id)) {
                return false;
            }
            let here = copies.iter().filter(|copy| {
                let home = self.homes.get(**copy as usize).copied().unwrap_or(SEVERAL);
                home == change.region || home == SEVERAL
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

    /// What changed of the copies; `None` where all is better made anew.
    fn changes(&mut self, source: &Source, parts: &Parts, before: &Built) -> Result<Option<Changes>, Broken> {
        let outgrown = self.fresh.is_none_or(|fresh| self.numbers.len() > 2 * fresh + SPARE_HOLDERS);
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
            let mut change = Change { region: self.region(region), spans: Vec::new(), now: HashMap::new() };
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

    /// One table; adds to `copies` how many it has.
    fn segment(
        &mut self,
        source: &Source,
        parts: &Parts,
        draft: &Draft,
        copies: &mut u64,
    ) -> Result<Arc<Table>, Broken> {
        let places = Places::new(&draft.shards);
        // The place among the shards, and the holder.
        let mut found: Vec<(u32, u32)> = Vec::new();
        for (region, part) in &parts.regions {
            let home = self.region(region);
            for &hash in &part.chunks {
                if self.spans.get(&hash).is_some_and(|span| !places.meet(*span)) {
                    continue;
                }
                for (shard, instance, role, state) in self.read_copies(source, region, hash)?.rows() {
                    if let Some(place) = places.of(shard) {
                        found.push((place, self.number(home, instance, role, state)));
                    }
                }
            }
        }
        *copies += found.len() as u64;
        // Stable: regions stay in their order.
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
        Ok(Arc::new(Table { id: (self.next_table)(), memory, segment: Some(segment) }))
    }

    /// Adds the shards of a chunk.
    fn read_ranges(
        &mut self,
        source: &Source,
        hash: ChunkHash,
        shards: &mut Vec<(ShardId, ShardKey)>,
    ) -> Result<(), Broken> {
        let from = shards.len();
        read(source, &ShardPart::Ranges, hash, |chunk| {
            read_ranges(hash, chunk, |id, start| shards.push((id, start)))
        })?;
        if let [(_, first), .., (_, last)] | [(_, first @ last)] = &shards[from..] {
            self.starts.insert(hash, (*first, *last));
        }
        Ok(())
    }

    fn read_copies(&mut self, source: &Source, region: &Region, hash: ChunkHash) -> Result<Copies, Broken> {
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
        u16::try_from(place).unwrap_or(SEVERAL)
    }

    fn number(&mut self, home: u16, instance: &InstanceId, role: &Role, state: ReplicaState) -> u32 {
        let number = self.numbers.intern(instance, role, state);
        match self.homes.get_mut(number as usize) {
            Some(known) if *known != home => *known = SEVERAL,
            Some(_) => {}
            None => self.homes.push(home),
        }
        number
    }
}

impl Changes {
    /// The shards of a segment, where they are others than before.
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

/// Reads a chunk; one that was on disk and is damaged there counts as lost.
fn read<T>(
    source: &Source,
    part: &ShardPart,
    hash: ChunkHash,
    read: impl FnOnce(&[u8]) -> Result<T, Invalid>,
) -> Result<T, Broken> {
    read(&source.chunk(part, hash)?).map_err(|invalid| match source.is_on_disk(part, hash) {
        true => Broken::Lost(hash),
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

/// Where shards stand, by id.
struct Places {
    first: ShardId,
    last: ShardId,
    by: By,
}

enum By {
    /// By distance from the first id; `u32::MAX` is nowhere.
    Distance(Vec<u32>),
    Id(HashMap<ShardId, u32>),
}

impl Places {
    fn new(shards: &[(ShardId, ShardKey)]) -> Self {
        let ids = shards.iter().map(|(id, _)| *id);
        let first = ids.clone().min().unwrap_or(ShardId(0));
        let last = ids.clone().max().unwrap_or(ShardId(0));
        let by = if last.0 - first.0 < DENSE {
            let mut places = vec![u32::MAX; (last.0 - first.0) as usize + 1];
            ids.zip(0..).for_each(|(id, place)| places[(id.0 - first.0) as usize] = place);
            By::Distance(places)
        } else {
            By::Id(ids.zip(0..).collect())
        };
        Self { first, last, by }
    }

    fn meet(&self, (first, last): (ShardId, ShardId)) -> bool {
        first <= self.last && self.first <= last
    }

    fn of(&self, id: ShardId) -> Option<u32> {
        match &self.by {
            By::Distance(places) => {
                let place = places.get(id.0.checked_sub(self.first.0)? as usize).copied();
                place.filter(|place| *place != u32::MAX)
            }
            By::Id(places) => places.get(&id).copied(),
        }
    }
}
