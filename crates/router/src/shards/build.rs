use std::collections::HashMap;

use fairmesh_model::{InstanceId, ReplicaState, Role, Shard, ShardMap};

use super::{
    Holding, Scale, Shards, block,
    tree::{FAN_OUT, Line, Tree, lines},
};

pub(super) fn compile(map: &ShardMap) -> Shards {
    let scale = scale(map);
    let mut builder =
        Builder { scale, lines: Vec::new(), rests: Vec::new(), holdings: Vec::new(), known: HashMap::new() };
    let mut blocks = Vec::with_capacity(map.shards.len() / FAN_OUT + 1);
    let mut firsts = Vec::with_capacity(blocks.capacity());
    for shards in map.shards.chunks(FAN_OUT) {
        blocks.push(builder.lines.len() as u32);
        firsts.push(scale.split(shards[0].start));
        builder.push(shards);
    }
    Shards {
        version: map.version,
        interval: map.interval,
        len: map.shards.len() as u32,
        scale,
        tree: Tree::new(&firsts, scale.has_rest()),
        blocks: blocks.into_boxed_slice(),
        lines: builder.lines.into_boxed_slice(),
        rests: builder.rests.into_boxed_slice(),
        holdings: builder.holdings.into_boxed_slice(),
    }
}

/// The scale by the last start, not by the interval: the interval is often "everything" where keys are small.
fn scale(map: &ShardMap) -> Scale {
    let origin = map.interval.first.0;
    let last = map.shards.last().map_or(origin, |shard| shard.start.0);
    let bits = 128 - (last - origin).leading_zeros();
    Scale { origin, shift: bits.saturating_sub(64) }
}

struct Builder<'a> {
    scale: Scale,
    lines: Vec<Line>,
    rests: Vec<Line>,
    holdings: Vec<Holding>,
    known: HashMap<(&'a InstanceId, &'a Role, ReplicaState), u32>,
}

impl<'a> Builder<'a> {
    /// Appends the block of up to [`FAN_OUT`] shards.
    fn push(&mut self, shards: &'a [Shard]) {
        block::write(self.scale, shards, &mut self.lines);
        self.push_copies(shards);
        if self.scale.has_rest() {
            self.rests.extend_from_slice(&lines(shards.iter().map(|shard| self.scale.split(shard.start).1)));
        }
    }

    fn push_copies(&mut self, shards: &'a [Shard]) {
        let first = self.lines.len();
        let copies = shards.iter().flat_map(|shard| shard.replicas.iter().take(block::MOST_COPIES));
        for (i, replica) in copies.enumerate() {
            let next = self.holdings.len() as u32;
            let id = *self.known.entry((&replica.instance, &replica.role, replica.state)).or_insert(next);
            if id == next {
                self.holdings.push(Holding {
                    instance: replica.instance.clone(),
                    role: replica.role.clone(),
                    state: replica.state,
                });
            }
            if i % 16 == 0 {
                self.lines.push(Line([0; 8]));
            }
            self.lines[first + i / 16].0[i % 16 / 2] |= u64::from(id) << (32 * (i % 2));
        }
    }
}
