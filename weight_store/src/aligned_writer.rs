//! Writing large files without filling the page cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use atomic_fs::{Directory, PUBLIC_MODE};
use rustix::fs::OFlags;

use crate::buffer::AlignedBuffer;
use crate::disk;
use crate::layout::PAGE_BYTES;

/// Size of a write.
const CHUNK_BYTES: usize = 4 << 20;

/// A file that is written at page-aligned offsets.
#[derive(Debug)]
pub(crate) struct AlignedFileWriter {
    file: File,
    /// True if writes bypass the page cache.
    direct: bool,
    bounce: AlignedBuffer,
}

impl AlignedFileWriter {
    /// Opens a file of a folder; creates it if it does not exist.
    pub fn open(folder: &Directory, name: &str) -> io::Result<AlignedFileWriter> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let open = |more| folder.open_file(name, flags | more, PUBLIC_MODE);
        let bounce = AlignedBuffer::new(CHUNK_BYTES);
        match disk::if_direct(open(OFlags::DIRECT))? {
            Some(file) => Ok(AlignedFileWriter { file, direct: true, bounce }),
            None => Ok(AlignedFileWriter { file: open(OFlags::empty())?, direct: false, bounce }),
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes `bytes` at `offset_bytes`, a multiple of a page, and zeros up to the end of the last
    /// page. The bytes are durable on the drive when this returns.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at_bytes = offset_bytes;
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let rounded = chunk.len().next_multiple_of(PAGE_BYTES as usize);
            let aligned = &mut self.bounce.bytes_mut()[..rounded];
            aligned[..chunk.len()].copy_from_slice(chunk);
            aligned[chunk.len()..].fill(0);
            self.file.write_all_at(&self.bounce.bytes()[..rounded], at_bytes)?;
            if !self.direct {
                self.file.sync_data()?;
                disk::drop_cache(&self.file, at_bytes, rounded as u64);
            }
            at_bytes += rounded as u64;
        }
        self.file.sync_data()
    }

    /// Makes the whole file durable and drops it from the page cache.
    pub fn finish(&self) -> io::Result<()> {
        self.file.sync_all()?;
        disk::drop_cache(&self.file, 0, 0);
        Ok(())
    }
}
