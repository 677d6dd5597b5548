//! Kernel arrays mapped into the memory of this process.
#![allow(unsafe_code, reason = "the programs share this memory")]

use std::{
    io,
    ops::Deref,
    ptr::{self, NonNull},
    slice,
};

use aya::maps::Map;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::KernelError;

/// Values that are changed only through atomics and cells, and for which any bytes are valid.
///
/// # Safety
/// Both properties must hold for each field.
pub(crate) unsafe trait SharedValue {}

/// The values of a kernel array, mapped until dropped.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    values: NonNull<T>,
    length: usize,
}

// SAFETY: values are changed through atomics, or through cells whose users justify the access.
unsafe impl<T: SharedValue> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: SharedValue> Sync for Mapped<T> {}

impl<T: SharedValue> Mapped<T> {
    /// Maps an array of at least `length` contiguous values.
    pub(crate) fn open(map: &Map, length: usize) -> Result<Self, KernelError> {
        let refused = |error: &dyn std::error::Error| KernelError::refused("shared memory", error);
        let Map::Array(array) = map else { return Err(KernelError::NoPrograms) };
        let (bytes, access) = (length * size_of::<T>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let mapped = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, array.fd(), 0) };
        let mapped = mapped.map_err(|error| refused(&io::Error::from(error)))?;
        let values =
            NonNull::new(mapped.cast()).ok_or_else(|| refused(&io::Error::from(io::ErrorKind::Other)))?;
        Ok(Self { values, length })
    }
}

impl<T: SharedValue> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `length` values are mapped until `self` is dropped, and `SharedValue` guarantees valid bytes.
        unsafe { slice::from_raw_parts(self.values.as_ptr(), self.length) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and no reference to it is left. After an error it stays
        // mapped.
        let _ = unsafe { munmap(self.values.as_ptr().cast(), self.length * size_of::<T>()) };
    }
}
