//! Any header block of a connection is decoded or refused, and a peer decodes our blocks to the same fields.

use arbitrary::{Arbitrary as _, Unstructured};
use fairmesh_http::hpack::{Block, Decoder, Encoder, Field};

/// What HTTP/2 counts of a head before it is refused; a block of a few bytes may hold far more.
const MOST: usize = 64 * 1024;
const TABLE: usize = 4096;

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let (mut ours, mut theirs) = (Decoder::new(TABLE), Decoder::new(TABLE));
    let mut encoder = Encoder::default();
    while !u.is_empty() {
        if let Ok(Some(size)) = Option::<u16>::arbitrary(&mut u) {
            // The peer's table is as large as the largest that we use, at any advertised size.
            encoder.limit(size.into());
        }
        let Ok(block) = <&[u8]>::arbitrary(&mut u) else { return };
        let (mut fields, mut size) = (Vec::new(), 0);
        let decoded = ours.decode(block, |field| {
            size += field.size();
            if size <= MOST {
                fields.push(field);
            }
        });
        if decoded.is_err() {
            return;
        }
        let mut out = Vec::new();
        let mut written = encoder.block(&mut out);
        fields.retain(|field| write(&mut written, field));
        let mut heard = Vec::new();
        theirs.decode(&out, |field| heard.push(field)).expect("we write what we read");
        assert_eq!(heard, fields);
    }
}

/// Writes a field, where it is one that is ever written.
fn write(block: &mut Block<'_>, field: &Field) -> bool {
    match field {
        Field::Method(method) => block.method(method),
        Field::Scheme(scheme) => block.scheme(scheme.as_str()),
        Field::Authority(authority) => block.authority(authority.as_str()),
        Field::Path(path) => block.path(path.as_str()),
        Field::Status(status) => block.status(*status),
        Field::Header(name, value) => block.header(name, value),
        Field::Protocol(_) | Field::Malformed(..) => return false,
    }
    true
}
