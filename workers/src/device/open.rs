//! The device in one process: context, arena, kernels and pinned memory.

use std::collections::HashMap;
use std::sync::Arc;

use cuda::{Arena, Context, CudaError, DeviceAddress, Driver, Event, IpcHandle, Kernel};
use cuda::{PinnedBuffer, RegisteredHost, Stream};
use cuda_kernels::KernelLaunch;
use program::pinned::copied_ranges;
use program::plan::Plan;
use program::topology::{LaneId, SegmentId};
use protocol::messages::CudaConfig;
use shm::{Access, Control, Mapping};

use super::buffer_addresses::BufferAddresses;
use super::code;
use super::products::{ProductScratch, Products, shapes};
use super::row_lists::frequencies;
use super::scratch::{Range, Scratch};

/// Handle by which another process opens the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaHandle {
    /// Handle of the driver.
    pub handle: [u8; 64],
    /// Size of the arena.
    pub size_bytes: u64,
}

/// A CUDA device as one worker sees it.
#[derive(Debug)]
pub struct Device {
    context: Context,
    arena: Arena,
    buffer_addresses: BufferAddresses,
    scratch: Scratch,
    /// Kernels by name; empty in the transfer worker.
    kernels: HashMap<&'static str, Kernel>,
    /// Linears that cuBLASLt computes.
    products: Option<Products>,
    /// Unpinned before the mappings are released.
    registered: Vec<RegisteredHost>,
    /// Device address of the control segment; `None` if streams cannot wait for words.
    control_address: Option<DeviceAddress>,
    /// Keeps the registered memory mapped.
    mappings: Vec<Arc<Mapping>>,
    control: Control,
}

impl Device {
    /// Opens the device and allocates the plan's arena on it, for the worker that computes.
    /// `on_compile` is called, possibly on another thread, if the driver has to compile the
    /// kernels.
    ///
    /// # Errors
    /// Returns an error if there is no such device or its memory is too small; the message states
    /// the sizes.
    pub fn create(
        plan: &Plan,
        cuda: CudaConfig,
        control: &Control,
        on_compile: &(dyn Fn() + Sync),
    ) -> Result<Device, CudaError> {
        let context = Context::open(&Driver::open()?, cuda.index)?;
        let arena =
            Arena::allocate(&context, Scratch::new(&plan.device_work(), cuda.blas).end_bytes)?;
        let module = code::load(&context, on_compile)?;
        let mut device = Device::from_arena(plan, context, arena, cuda, control);
        if cuda.blas && !shapes(&plan.device_work()).is_empty() {
            let (arena, size_bytes) = (device.arena.base(), device.arena.size_bytes());
            let [sums, workspace, weight] =
                device.scratch.blas.map(|range| device.scratch_address(range));
            let scratch = ProductScratch { sums, workspace, weight };
            // SAFETY: needed to try the products. The arena was just made, so it has no other user,
            // and the scratch is within it.
            device.products = unsafe {
                Products::open(&device.context, &plan.device_work(), arena, size_bytes, scratch)
            }?;
        }
        for name in kernel_names(cuda_kernels::PTX) {
            device.kernels.insert(name, module.kernel(name)?);
        }
        if !cuda.waits_on_host {
            device.register_control()?;
        }
        device.upload_frequencies(plan)?;
        Ok(device)
    }

    /// Opens the arena that the gpu worker exported, for workers that copy or read to it.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn open(
        plan: &Plan,
        cuda: CudaConfig,
        exported: &ArenaHandle,
        control: &Control,
    ) -> Result<Device, CudaError> {
        let context = Context::open(&Driver::open()?, cuda.index)?;
        let arena = Arena::open(&context, IpcHandle(exported.handle), exported.size_bytes)?;
        let mut device = Device::from_arena(plan, context, arena, cuda, control);
        if !cuda.waits_on_host {
            device.register_control()?;
        }
        Ok(device)
    }

    fn from_arena(
        plan: &Plan,
        context: Context,
        arena: Arena,
        cuda: CudaConfig,
        control: &Control,
    ) -> Device {
        Device {
            buffer_addresses: BufferAddresses::new(plan, arena.base(), arena.size_bytes()),
            scratch: Scratch::new(&plan.device_work(), cuda.blas),
            kernels: HashMap::new(),
            products: None,
            registered: Vec::new(),
            control_address: None,
            mappings: Vec::new(),
            control: control.clone(),
            context,
            arena,
        }
    }

    /// Returns a handle of the arena for another process.
    ///
    /// # Errors
    /// Returns the driver's error, which occurs in some containers.
    pub fn export(&self) -> Result<ArenaHandle, CudaError> {
        Ok(ArenaHandle { handle: self.arena.export()?.0, size_bytes: self.arena.size_bytes() })
    }

    /// Pins the host memory that programs copy from and to the device, so that these copies run
    /// concurrently with all other work. Everything else stays pageable (Park-Egger §3.1).
    ///
    /// # Errors
    /// Returns the driver's error, for example if the limit on locked memory is too small.
    pub fn pin(
        &mut self,
        plan: &Plan,
        mappings: &[(SegmentId, Arc<Mapping>)],
    ) -> Result<(), CudaError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let copied = copied_ranges(plan, rustix::param::page_size() as u64);
        for (segment, mapping) in mappings {
            let Some(ranges) = copied.get(segment) else { continue };
            let end_bytes = mapping.size_bytes() as u64;
            for range in ranges.iter().filter(|range| range.start < end_bytes) {
                let (first, end) = (range.start as usize, range.end.min(end_bytes) as usize);
                // Pinning would fault in the pages one after the other.
                mapping.populate_range(first..end, threads);
                let writable = mapping.access() == Access::ReadWrite;
                // SAFETY: needed to pin the memory. The range is mapped (above), stays so while
                // this device holds the mapping, and is unpinned first (order of the fields).
                let registered = unsafe {
                    let base = mapping.base().add(first);
                    RegisteredHost::new(&self.context, base, end - first, writable)
                }?;
                self.registered.push(registered);
            }
            self.mappings.push(Arc::clone(mapping));
        }
        Ok(())
    }

    /// Lets streams wait for timelines if the driver supports it.
    fn register_control(&mut self) -> Result<(), CudaError> {
        let segment = self.control.segment();
        // SAFETY: needed for the device to read timelines. The control segment stays mapped while
        // this device holds it.
        let registered = unsafe {
            RegisteredHost::new(&self.context, segment.base(), segment.size_bytes(), true)
        }?;
        let base = registered.address()?;
        self.registered.push(registered);
        let stream = Stream::new(&self.context)?;
        let word = base + self.timeline_offset(LaneId::CPU_COMPUTE);
        // A wait that is already satisfied, which the driver refuses if streams cannot wait.
        // Whatever the reason, waiting on the host works everywhere.
        let value = self.control.lane(LaneId::CPU_COMPUTE.index()).timeline.value();
        // SAFETY: needed to find out; the word is in the segment that was just registered.
        let asked = unsafe { stream.wait_value(word, value) };
        if asked.is_ok() {
            stream.synchronize()?;
            self.control_address = Some(base);
        }
        Ok(())
    }

    /// Runs a little of everything that a lane does on a new stream, and waits for it. A device
    /// schedules its processes in turns: the first work of a stream may never get one while a
    /// stream of another process waits for a word that this work would produce. Therefore every
    /// stream has had its first turn before the first lane waits.
    pub(super) fn begin_stream(&self, stream: &Stream) -> Result<(), CudaError> {
        // Too large to be sent within the command.
        const PIECE_BYTES: usize = 128 << 10;
        let host = PinnedBuffer::allocate(&self.context, PIECE_BYTES)?;
        let events = [Event::new(&self.context)?, Event::new(&self.context)?];
        events[0].record(stream)?;
        // Reading the arena is harmless. The data written has a piece of its own, if there is one.
        let size_bytes = PIECE_BYTES.min(self.arena.size_bytes() as usize);
        // SAFETY: needed to begin the stream. Both ranges have the size and live until the stream
        // is done, below; what is read is not used.
        unsafe { stream.copy_to_host(host.base(), self.arena.base(), size_bytes) }?;
        let piece = match Arena::allocate(&self.context, PIECE_BYTES as u64) {
            Ok(piece) => Some(piece),
            Err(CudaError::OutOfMemory { .. }) => None,
            Err(error) => return Err(error),
        };
        if let Some(piece) = &piece {
            // SAFETY: as above; nothing else knows the piece.
            unsafe {
                stream.copy_to_device(piece.base(), host.base(), PIECE_BYTES)?;
                stream.fill(piece.base(), 0, PIECE_BYTES)?;
            }
        }
        events[1].record(stream)?;
        stream.synchronize()
    }

    fn timeline_offset(&self, lane: LaneId) -> u64 {
        let timeline = std::ptr::from_ref(&self.control.lane(lane.index()).timeline);
        timeline.addr().wrapping_sub(self.control.segment().base().addr()) as u64
    }

    /// Returns the device address of a lane's timeline, if streams can wait for it.
    pub(super) fn timeline(&self, lane: LaneId) -> Option<DeviceAddress> {
        self.control_address.map(|base| base + self.timeline_offset(lane))
    }

    fn upload_frequencies(&self, plan: &Plan) -> Result<(), CudaError> {
        let frequencies = frequencies(&plan.config);
        if frequencies.is_empty() {
            return Ok(());
        }
        let bytes: &[u8] = bytemuck::cast_slice(&frequencies);
        let stream = Stream::new(&self.context)?;
        let to = self.scratch_address(self.scratch.frequencies);
        // SAFETY: needed to bring the table to the device. The range has its size; the source lives
        // until the stream is done, two lines down.
        unsafe { stream.copy_to_device(to, bytes.as_ptr(), bytes.len()) }?;
        stream.synchronize()
    }

    /// Enqueues a kernel; does nothing for an empty launch.
    ///
    /// # Safety
    /// The launch's operands are device ranges of the sizes that its kernel expects, and nothing
    /// touches them in conflict until the stream has passed it.
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        mut launch: KernelLaunch,
    ) -> Result<(), CudaError> {
        if launch.is_empty() {
            return Ok(());
        }
        let Some(kernel) = self.kernels.get(launch.name) else {
            return Err(CudaError::NoKernel { kernel: launch.name.to_owned() });
        };
        let (grid, block) = (launch.grid, launch.block);
        let dimensions = cuda::Launch { grid, block, shared_bytes: launch.shared_bytes };
        let mut parameters = launch.args.pointers();
        // SAFETY: needed to compute. The parameters are those that the builder of this kernel made;
        // the caller vouches for the ranges.
        unsafe { kernel.launch(stream, dimensions, &mut parameters) }
    }

    pub(super) fn products(&self) -> Option<&Products> {
        self.products.as_ref()
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn buffer_addresses(&self) -> &BufferAddresses {
        &self.buffer_addresses
    }

    pub(super) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns the first address of a range of the scratch.
    pub(super) fn scratch_address(&self, range: Range) -> DeviceAddress {
        self.arena.base() + range.offset_bytes
    }

    /// Returns the name, the compute capability and the library of the linears, for the report.
    pub fn describe(&self) -> String {
        let info = self.context.info();
        let (major, minor) = info.capability;
        let linears = match &self.products {
            Some(products) => format!("prefill's linears by {}", products.describe()),
            None => "linears by its own kernels".to_owned(),
        };
        format!("{} (compute capability {major}.{minor}), {linears}", info.name)
    }
}

/// Returns the names of the kernels in PTX.
fn kernel_names(ptx: &'static str) -> impl Iterator<Item = &'static str> {
    ptx.split(".entry").skip(1).filter_map(|text| text.split(['(', '{']).next()).map(str::trim)
}
