//! Bound on the bytes of all stored files.

use std::sync::Arc;

use shm::sync::{AtomicU64, Ordering};

/// Size of a block of a file system, in bytes: a file uses a whole number of them.
const BLOCK_BYTES: u64 = 4096;

/// Returns the number of bytes that a file and its record use.
pub fn stored_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES).saturating_add(1).saturating_mul(BLOCK_BYTES)
}

/// Bytes of all stored files, and their maximum.
#[derive(Debug)]
pub struct StorageQuota {
    max_bytes: u64,
    used_bytes: AtomicU64,
}

impl StorageQuota {
    /// Creates a quota of which nothing is used.
    pub fn new(max_bytes: u64) -> Arc<StorageQuota> {
        Arc::new(StorageQuota { max_bytes, used_bytes: AtomicU64::new(0) })
    }

    /// Returns the number of bytes that are used.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes that are already stored, even beyond the maximum.
    pub fn add(&self, bytes: u64) {
        // Relaxed: no other memory access depends on the order.
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes as removed.
    pub fn subtract(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that are to be stored; returns false, without counting them, if they exceed the
    /// maximum.
    pub fn try_add(&self, bytes: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|total| *total <= self.max_bytes);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

/// Bytes of a file that grows, which are released when this is dropped.
#[derive(Debug)]
pub struct QuotaReservation {
    quota: Arc<StorageQuota>,
    bytes: u64,
}

impl QuotaReservation {
    /// Creates a reservation of no bytes.
    pub fn new(quota: &Arc<StorageQuota>) -> QuotaReservation {
        QuotaReservation { quota: Arc::clone(quota), bytes: 0 }
    }

    /// Grows the reservation to `bytes`; returns false, without a change, if this exceeds the
    /// maximum.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let is_granted = bytes <= self.bytes || self.quota.try_add(bytes - self.bytes);
        if is_granted {
            self.bytes = self.bytes.max(bytes);
        }
        is_granted
    }
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        self.quota.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_maximum_are_refused_until_others_are_released() {
        let quota = StorageQuota::new(10_000);
        quota.add(4000);
        let mut upload = QuotaReservation::new(&quota);
        assert!(upload.grow(5000) && upload.grow(4000) && !upload.grow(6001));
        assert_eq!(quota.used_bytes(), 9000);
        assert!(!quota.try_add(u64::MAX) && !quota.try_add(1001) && quota.try_add(1000));
        drop(upload);
        assert_eq!(quota.used_bytes(), 5000);
        assert_eq!((stored_bytes(0), stored_bytes(1), stored_bytes(4097)), (4096, 8192, 12288));
    }
}
