//! Revisions and cursors: `Revision` and `Cursor` of `rib.proto`.

use fairmesh_model::{Cursor, Invalid, Revision};

use super::{store_id, store_id_bytes};
use crate::v1;

impl From<Revision> for v1::Revision {
    fn from(revision: Revision) -> Self {
        let Revision { store, partition, number } = revision;
        Self { store_id: store_id_bytes(store), partition, number }
    }
}

impl TryFrom<v1::Revision> for Revision {
    type Error = Invalid;

    fn try_from(message: v1::Revision) -> Result<Self, Invalid> {
        let v1::Revision { store_id: bytes, partition, number } = message;
        Ok(Self { store: store_id(&bytes)?, partition, number })
    }
}

impl From<Cursor> for v1::Cursor {
    fn from(cursor: Cursor) -> Self {
        Self { store_id: store_id_bytes(cursor.store), numbers: cursor.numbers }
    }
}

impl TryFrom<v1::Cursor> for Cursor {
    type Error = Invalid;

    fn try_from(message: v1::Cursor) -> Result<Self, Invalid> {
        Ok(Self { store: store_id(&message.store_id)?, numbers: message.numbers })
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::StoreId;

    use super::*;

    #[test]
    fn revisions_and_cursors_round_trip() {
        let revision = Revision { store: StoreId(u128::MAX - 1), partition: 3, number: 42 };
        assert_eq!(v1::Revision::from(revision).try_into(), Ok(revision));
        let cursor = Cursor::at(revision);
        assert_eq!(v1::Cursor::from(cursor.clone()).try_into(), Ok(cursor));
    }

    #[test]
    fn store_id_must_have_16_bytes() {
        let message = v1::Revision { store_id: vec![1; 15].into(), partition: 0, number: 1 };
        assert_eq!(Revision::try_from(message).unwrap_err().field, "store_id");
        assert!(Cursor::try_from(v1::Cursor::default()).is_err());
    }
}
