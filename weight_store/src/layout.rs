//! Offsets of blobs and blocks, which follow from the sizes of the blobs alone.

/// Size of a block, the unit in which blobs are verified and divided over devices.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// Alignment of each blob in `weights.bin`.
pub const BLOB_ALIGN_BYTES: u64 = 2 << 20;

/// Alignment that `O_DIRECT` may require of offsets, sizes and addresses.
pub const PAGE_BYTES: u64 = 4096;

/// Size of a checksum in `blocks.bin`.
pub(crate) const CHECKSUM_BYTES: u64 = 8;

/// Upper bound on the size of index and journal for a copy without blobs, and for each blob in
/// addition to its name.
const RECORDS_BYTES: u64 = 64 << 10;
const RECORD_BYTES: u64 = 512;

/// Name and size of a blob to be staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobSize {
    /// Unique name.
    pub name: String,
    pub size_bytes: u64,
}

/// Location of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobExtent {
    /// Offset of its first byte in `weights.bin`.
    pub offset_bytes: u64,
    pub size_bytes: u64,
    /// Index of its first block among the blocks of all blobs.
    pub first_block: u64,
    pub blocks: u64,
}

/// Locations of all blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub extents: Vec<BlobExtent>,
    /// Size of `weights.bin`.
    pub weights_bytes: u64,
    /// Number of blocks of all blobs.
    pub blocks: u64,
}

impl Layout {
    /// Computes the layout of blobs of these sizes, in this order; `None` if offsets overflow.
    pub fn from_sizes(sizes_bytes: impl IntoIterator<Item = u64>) -> Option<Layout> {
        let mut layout = Layout { extents: Vec::new(), weights_bytes: 0, blocks: 0 };
        for size_bytes in sizes_bytes {
            let blocks = size_bytes.div_ceil(BLOCK_BYTES);
            layout.extents.push(BlobExtent {
                offset_bytes: layout.weights_bytes,
                size_bytes,
                first_block: layout.blocks,
                blocks,
            });
            let aligned = size_bytes.checked_next_multiple_of(BLOB_ALIGN_BYTES)?;
            let weights_bytes = layout.weights_bytes.checked_add(aligned)?;
            layout.weights_bytes =
                Some(weights_bytes).filter(|size| i64::try_from(*size).is_ok())?;
            layout.blocks += blocks;
        }
        Some(layout)
    }

    /// Returns the size of `blocks.bin`.
    pub fn blocks_bytes(&self) -> u64 {
        self.blocks * CHECKSUM_BYTES
    }
}

/// Returns the bytes that a copy of `blobs` occupies on a drive, including all other files of the
/// folder; `u64::MAX` for sizes that exceed any file.
pub fn size_bytes(blobs: &[BlobSize]) -> u64 {
    let Some(layout) = Layout::from_sizes(blobs.iter().map(|blob| blob.size_bytes)) else {
        return u64::MAX;
    };
    let names: u64 = blobs.iter().map(|blob| blob.name.len() as u64).sum();
    let records = RECORDS_BYTES + 2 * names + RECORD_BYTES * blobs.len() as u64;
    layout.weights_bytes.saturating_add(layout.blocks_bytes()).saturating_add(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_aligned_and_do_not_overlap() {
        let sizes = [1, 63, 65536, 65537, (2 << 20) + 1, 0, 5];
        let layout = Layout::from_sizes(sizes).unwrap();
        let mut end_bytes = 0;
        let mut blocks = 0;
        for (place, size_bytes) in layout.extents.iter().zip(sizes) {
            assert_eq!(place.offset_bytes % BLOB_ALIGN_BYTES, 0);
            assert!(place.offset_bytes >= end_bytes);
            assert_eq!(place.first_block, blocks);
            end_bytes = place.offset_bytes + size_bytes;
            blocks += place.blocks;
        }
        assert_eq!(layout.extents[3].blocks, 2);
        assert_eq!(layout.blocks, blocks);
        assert!(layout.weights_bytes >= end_bytes);
    }

    #[test]
    fn absurd_sizes_have_no_layout() {
        assert_eq!(Layout::from_sizes([u64::MAX]), None);
        assert_eq!(Layout::from_sizes([u64::MAX / 2, u64::MAX / 2]), None);
        let blob = BlobSize { name: "a".to_owned(), size_bytes: u64::MAX };
        assert_eq!(size_bytes(&[blob]), u64::MAX);
    }
}
