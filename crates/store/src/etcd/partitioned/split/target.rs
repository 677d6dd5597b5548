//! The cluster that services are to move to.

use std::sync::Arc;

use super::{
    super::{
        super::{
            EtcdConfig,
            client::{Again, Client},
            draw,
            failure::Failure,
            follow::read_state,
            layout::{self, Layout, Mark},
            proto::TxnRequest,
        },
        change,
        core::Core,
        map::{MAX_PARTS, Part},
        open::{self, TURN, refused},
    },
    Move,
    plan::Planned,
};
use crate::{EtcdAddress, StoreError};

/// What was found there.
#[derive(Clone, Debug)]
pub(super) struct Found {
    address: EtcdAddress,
    /// Which part it is, or would be.
    part: usize,
    /// What tells it from others; `None` where nothing is there yet.
    token: Option<u64>,
    is_new: bool,
}

impl Found {
    pub(super) fn part(&self) -> usize {
        self.part
    }
}

impl Core {
    /// Looks what there is, and changes nothing.
    pub(super) async fn target(&self, address: &EtcdAddress) -> Result<Found, StoreError> {
        let config = EtcdConfig { address: address.clone(), ..self.config.clone() };
        let (client, layout) = (Client::new(&config)?, Layout::of_part(address.root()));
        let state = read_state(&client, &layout).await.map_err(|failure| failure.reading(&client.place))?;
        let routes = self.routes();
        let is_new =
            Found { address: address.clone(), part: routes.map.parts.len(), token: None, is_new: true };
        let Some(mark) = state.mark else {
            return match is_new.part < MAX_PARTS {
                true => Ok(is_new),
                false => {
                    Err(refused(&client.place, "the store has as many parts as it can; name one of them"))
                }
            };
        };
        match layout::read_mark(&mark, &client.place)? {
            Mark::Part { id, token } if id == self.home.id => {
                let known = routes.map.parts.iter().position(|part| part.token == token);
                // One that is none of the parts is what a move left that was cut short.
                let part = known.unwrap_or(is_new.part);
                Ok(Found { part, token: Some(token), is_new: known.is_none(), ..is_new })
            }
            _ => Err(refused(&client.place, "another store lies there; name a root with nothing below it")),
        }
    }

    /// Makes a part of what was found, where it is none, and takes it over.
    pub(super) async fn ready(&self, plan: Planned, found: Found) -> Result<Arc<Move>, StoreError> {
        let before = self.routes();
        let Planned { wanted, from, .. } = plan;
        if !found.is_new {
            let target = before.clusters[found.part].clone();
            let after = before.map.moved(&wanted, found.part, None);
            return Ok(Arc::new(Move { before, after, from, to: found.part, target }));
        }
        let config = EtcdConfig { address: found.address.clone(), ..self.config.clone() };
        let (client, layout) = (Client::new(&config)?, Layout::of_part(found.address.root()));
        // The home's is 0.
        let token = match found.token {
            Some(token) => token,
            None => (draw(&client)?.0 as u64).max(1),
        };
        let mark = layout::mark(Mark::Part { id: self.home.id, token });
        let creation = TxnRequest {
            compare: vec![change::absent(layout.store())],
            success: vec![
                change::put(layout.store(), mark.clone()),
                change::put(layout.meta(TURN), 0_u64.to_be_bytes().to_vec().into()),
            ],
            failure: Vec::new(),
        };
        let reading = |failure: Failure| failure.reading(&client.place);
        client.txn(Again::Always, creation).await.map_err(reading)?;
        let (target, _) = open::take(&config, mark, self.home.held()).await?;
        let part = Part { token, address: Some(found.address) };
        let after = before.map.moved(&wanted, found.part, Some(part));
        Ok(Arc::new(Move { before, after, from, to: found.part, target: Arc::new(target) }))
    }
}
