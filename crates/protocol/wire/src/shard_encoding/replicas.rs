use std::collections::{BTreeMap, HashMap, HashSet};

use fairmesh_model::{InstanceId, Invalid, Region, Replica, Role, Shard, ShardId};
use prost::encoding::encoded_len_varint;

use super::{
    chunker::Chunker,
    part::{Encoded, Part},
};
use crate::{convert, v1};

/// One copy without its region; the part determines the region.
pub(super) type Row<'a> = (ShardId, &'a Replica);

/// Groups the copies by region, in ascending order of shard ids. The order is by id rather than by start: the upper
/// half of a split has a new, greatest id, so its row is appended and shifts no other row.
pub(super) fn by_region(shards: &[Shard]) -> BTreeMap<&Region, Vec<Row<'_>>> {
    let mut regions: BTreeMap<&Region, Vec<Row<'_>>> = BTreeMap::new();
    for shard in shards {
        for replica in &shard.replicas {
            regions.entry(&replica.region).or_default().push((shard.id, replica));
        }
    }
    for rows in regions.values_mut() {
        rows.sort_by_key(|(shard, _)| *shard);
    }
    regions
}

/// Encodes the rows of one region as chunks.
pub(super) fn encode(rows: &[Row<'_>]) -> Encoded<v1::ReplicaChunk> {
    let mut cutter = Chunker::default();
    let mut chunks: Vec<ChunkWriter<'_>> = Vec::new();
    for &(shard, replica) in rows {
        let bytes = chunks.last().map_or(0, |chunk| chunk.growth(shard, replica));
        if cutter.begins(shard, bytes) {
            chunks.push(ChunkWriter::default());
        }
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(row(shard, replica));
        }
    }
    Encoded { chunks: chunks.into_iter().map(|writer| writer.chunk).collect(), rows: rows.len() }
}

fn row(shard: ShardId, replica: &Replica) -> RawRow<'_> {
    let state = v1::ReplicaState::from(replica.state).into();
    (shard.0, replica.instance.as_str(), replica.role.as_str(), state)
}

/// A row as encoded: the shard, the names of instance and role, and the state.
pub(super) type RawRow<'a> = (u32, &'a str, &'a str, i32);

/// A chunk under construction, and the names that it already contains.
#[derive(Default)]
pub(super) struct ChunkWriter<'a> {
    pub(super) chunk: v1::ReplicaChunk,
    instances: Names<'a>,
    roles: Names<'a>,
}

/// Index of each name.
type Names<'a> = HashMap<&'a str, u32>;

impl<'a> ChunkWriter<'a> {
    /// Continues the name indices of a chunk: the new chunk contains only names that are not in `before`.
    #[cfg(feature = "server")]
    pub(super) fn after(before: &'a v1::ReplicaChunk) -> Self {
        let names = |names: &'a [String]| names.iter().map(String::as_str).zip(0..).collect();
        let (instances, roles) = (names(&before.instances), names(&before.roles));
        Self { chunk: v1::ReplicaChunk::default(), instances, roles }
    }

    /// Upper bound of the bytes that a row adds.
    fn growth(&self, shard: ShardId, replica: &Replica) -> usize {
        let name = |names: &Names<'_>, text: &str| match names.get(text) {
            Some(index) => encoded_len_varint(u64::from(*index)),
            // The index, a tag, the length and the name itself.
            None => encoded_len_varint(names.len() as u64) + 3 + text.len(),
        };
        let names =
            name(&self.instances, replica.instance.as_str()) + name(&self.roles, replica.role.as_str());
        encoded_len_varint(shard.0.into()) + names + 1
    }

    pub(super) fn push(&mut self, (shard, instance, role, state): RawRow<'a>) {
        let Self { chunk, instances, roles } = self;
        chunk.shards.push(shard);
        chunk.instance.push(index(instances, &mut chunk.instances, instance));
        chunk.role.push(index(roles, &mut chunk.roles, role));
        chunk.state.push(state);
    }
}

/// The index of a name. A new name gets the next index.
fn index<'a>(known: &mut Names<'a>, names: &mut Vec<String>, name: &'a str) -> u32 {
    // A chunk has fewer names than bytes.
    let next = known.len() as u32;
    *known.entry(name).or_insert_with(|| {
        names.push(name.to_owned());
        next
    })
}

/// Checks that the lists have equal lengths, that shards ascend, and that all referenced names and states exist.
pub(super) fn check(chunk: &v1::ReplicaChunk) -> Result<(), Invalid> {
    let rows = chunk.shards.len();
    if [chunk.instance.len(), chunk.role.len(), chunk.state.len()] != [rows; 3] {
        return Err(Invalid::new("shards", "the lists differ in length", "write the shard map again"));
    }
    if let Some(pair) = chunk.shards.windows(2).find(|pair| pair[0] > pair[1]) {
        return Err(out_of_order(pair[1]));
    }
    let stray = |indices: &[u32], names: usize| indices.iter().any(|&index| index as usize >= names);
    if stray(&chunk.instance, chunk.instances.len()) || stray(&chunk.role, chunk.roles.len()) {
        return Err(Invalid::new("instance", "a row has an unknown name", "write the shard map again"));
    }
    for state in &chunk.state {
        convert::read_enum::<v1::ReplicaState>("state", *state)?;
    }
    let instances = chunk.instances.iter().try_for_each(|name| InstanceId::new(name).map(drop));
    instances.map_err(|e| e.within("instances"))?;
    let roles = chunk.roles.iter().try_for_each(|name| Role::new(name).map(drop));
    roles.map_err(|e| e.within("roles"))
}

fn out_of_order(shard: u32) -> Invalid {
    let problem = format!("{shard} does not follow the shard before it");
    Invalid::new("shards", problem, "order rows by ascending shard id")
}

/// Adds the copies in regions to the shards of a map.
pub(super) struct ReplicaMerger {
    /// Index of each shard, in ascending order of ids.
    positions: Vec<(ShardId, usize)>,
    /// Names seen so far. Chunks repeat names, and the map shares one allocation per name.
    instances: HashSet<InstanceId>,
    roles: HashSet<Role>,
}

impl ReplicaMerger {
    pub(super) fn new(shards: &[Shard]) -> Self {
        let mut positions: Vec<_> = shards.iter().enumerate().map(|(i, shard)| (shard.id, i)).collect();
        positions.sort_unstable();
        Self { positions, instances: HashSet::new(), roles: HashSet::new() }
    }

    /// Adds the copies of one region. Both lists ascend by id, so a single pass finds every shard.
    pub(super) fn add(&mut self, region: &Region, part: &Part, shards: &mut [Shard]) -> Result<(), Invalid> {
        let mut at = 0;
        part.read(|chunk: v1::ReplicaChunk| {
            check(&chunk)?;
            let instances = intern(&mut self.instances, &chunk.instances)?;
            let roles = intern(&mut self.roles, &chunk.roles)?;
            for (row, &shard) in chunk.shards.iter().enumerate() {
                at = self.find(at, ShardId(shard))?;
                let state = convert::read_enum::<v1::ReplicaState>("state", chunk.state[row])?;
                shards[self.positions[at].1].replicas.push(Replica {
                    instance: instances[chunk.instance[row] as usize].clone(),
                    region: region.clone(),
                    role: roles[chunk.role[row] as usize].clone(),
                    state: state.into(),
                });
            }
            Ok(chunk.shards.len())
        })
    }

    /// The index of `shard` in `positions`, starting the search at `from`.
    fn find(&self, from: usize, shard: ShardId) -> Result<usize, Invalid> {
        let ahead = self.positions[from..].iter().take_while(|(id, _)| *id < shard).count();
        match self.positions.get(from + ahead) {
            Some((id, _)) if *id == shard => Ok(from + ahead),
            _ => {
                let problem = format!("{shard} is not a shard of 'ranges', or is out of order");
                Err(Invalid::new("shards", problem, "write the shard map again"))
            }
        }
    }
}

/// The names of a chunk. Names seen before share their allocation.
fn intern<N>(known: &mut HashSet<N>, names: &[String]) -> Result<Vec<N>, Invalid>
where
    N: Clone + Eq + std::hash::Hash + std::borrow::Borrow<str> + std::str::FromStr<Err = Invalid>,
{
    let mut interned = Vec::with_capacity(names.len());
    for name in names {
        let name = match known.get(name.as_str()) {
            Some(name) => name.clone(),
            None => {
                let name: N = name.parse()?;
                known.insert(name.clone());
                name
            }
        };
        interned.push(name);
    }
    Ok(interned)
}
