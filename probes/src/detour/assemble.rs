//! The whole code of a detour, or of a pool's returns.

use exoprobe_guest::{Gva, guarded_load};
use iced_x86::code_asm::{CodeAssembler, CodeLabel};
use iced_x86::{BlockEncoderOptions, IcedError};

use super::Region;
use super::code::{Code, DetourFrame, Labels};
use super::loaded::has_room;
use super::pool::{Pool, STUB_LEN};
use super::spec::{Block, BlockAction, DetourEnv, DetourError, LOADS_MAX, Value};
use crate::insn;

/// push imm32
const PUSH: u8 = 0x68;

/// A detour's code for its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// All bytes of the code.
    pub bytes: Vec<u8>,
    /// Offset of the entry.
    pub entry: usize,
    /// Offset of the int3 that makes the VMM handle a hit: nothing has been counted at that point,
    /// and all registers but RIP are as they were at the detour's entry.
    pub doorbell: Option<usize>,
    /// Offset of the displaced instructions, which continue after a doorbell.
    pub displaced: usize,
}

impl Detour {
    /// Assembles the code for `at`: the branches for full rings and counters, the blocks, the
    /// instructions of `region`, and a jmp to the address after it.
    ///
    /// # Errors
    /// [`DetourError`].
    pub fn assemble(
        region: &Region,
        blocks: &[Block],
        env: &DetourEnv,
        at: Gva,
    ) -> Result<Self, DetourError> {
        let scratch = blocks.iter().any(|block| block.task != BlockAction::Count);
        let keeps_return = blocks.iter().filter(|block| block.task.is_follow()).count() > 1;
        let frame = DetourFrame { scratch, keeps_return, ..DetourFrame::default() };
        let mut plan = Plan::new(region.at(), blocks, frame)?;
        let code = &mut plan.code;
        // A hit of one probe alone may be refused before any memory is read.
        let filters_first = matches!(blocks, [block] if !block.task.filter_reads_memory());
        if filters_first {
            code.filter(&blocks[0], env, plan.labels[0])?;
        }
        code.prove(blocks, env)?;
        for (block, labels) in blocks.iter().zip(&plan.labels) {
            match &block.task {
                BlockAction::Count => code.count(block.counter)?,
                BlockAction::Record { .. } => {
                    if !filters_first {
                        code.filter(block, env, *labels)?;
                    }
                    code.record(block, env, *labels)?;
                }
                BlockAction::Follow { pool, kept } => code.follow((*pool, kept), env, *labels)?,
            }
        }
        code.leave()?;
        let mut detour = plan.finish(at)?;
        for insn in region.insns() {
            insn.copy_to(at, &mut detour.bytes)?;
        }
        let displaced = &detour.bytes[detour.displaced..];
        if displaced.windows(guarded_load::MARK.len()).any(|bytes| bytes == guarded_load::MARK) {
            return Err(DetourError::LooksGuarded);
        }
        if let Some(next) = region.next() {
            insn::jump_to(at, &mut detour.bytes, next)?;
        }
        Ok(detour)
    }

    /// Assembles the code for `at` to which the calls of a pool return: one block, which frees the
    /// instance, and after it the stubs of all instances, [`STUB_LEN`] bytes each. At
    /// [`Self::doorbell`] the registers are as at the return, and the instance's address is on the
    /// stack.
    ///
    /// # Errors
    /// [`DetourError`].
    pub fn assemble_returns(
        block: &Block,
        pool: Pool,
        env: &DetourEnv,
        at: Gva,
    ) -> Result<Self, DetourError> {
        let blocks = std::slice::from_ref(block);
        // No register value is that of the probed address there.
        let frame = DetourFrame { scratch: true, is_return: true, ..DetourFrame::default() };
        let mut plan = Plan::new(Gva(0), blocks, frame)?;
        let (code, mut labels) = (&mut plan.code, plan.labels[0]);
        code.is_of_instance()?;
        code.skip_when_off(pool, labels.done)?;
        if pool.kept > 0 {
            code.has_all_kept()?;
        }
        code.prove(blocks, env)?;
        match &block.task {
            BlockAction::Record { .. } => {
                code.filter(block, env, labels)?;
                code.record(block, env, labels)?;
            }
            BlockAction::Count | BlockAction::Follow { .. } => {
                code.count(block.counter)?;
                code.a.set_label(&mut labels.done)?;
            }
        }
        code.give_back(pool)?;
        code.leave()?;
        code.a.ret()?;
        let mut detour = plan.finish(at)?;
        let entry = at.wrapping_add(detour.entry as u64);
        for index in 0..pool.capacity {
            let begun = detour.bytes.len();
            let instance = pool.instance(index);
            detour.bytes.push(PUSH);
            detour.bytes.extend(super::code::imm32(instance)?.to_le_bytes());
            insn::jump_to(at, &mut detour.bytes, entry)?;
            debug_assert_eq!(detour.bytes.len() - begun, STUB_LEN);
        }
        Ok(detour)
    }
}

/// Code that is being assembled.
struct Plan {
    code: Code,
    labels: Vec<Labels>,
    entry: CodeLabel,
}

impl Plan {
    /// Begins with the branches out of the main path, and the saving of registers.
    fn new(probed: Gva, blocks: &[Block], frame: DetourFrame) -> Result<Self, DetourError> {
        let values = blocks.iter().flat_map(|block| block.task.values());
        let loads: usize = values.clone().map(Value::words).sum();
        if loads > LOADS_MAX {
            return Err(DetourError::TooManyLoads);
        }
        let loads = i32::try_from(loads).expect("at most 16");
        let has_bytes = values.into_iter().any(Value::is_in_bytes);
        if !blocks.iter().all(|block| has_room(block.task.values())) {
            return Err(DetourError::NoRoom);
        }
        let mut a = CodeAssembler::new(64)?;
        let label = |a: &mut CodeAssembler| Labels {
            full: a.create_label(),
            filtered: a.create_label(),
            done: a.create_label(),
        };
        let labels: Vec<Labels> = blocks.iter().map(|_| label(&mut a)).collect();
        let mut entry = a.create_label();
        let mut code = Code::new(a, probed, DetourFrame { loads, has_bytes, ..frame });
        for (block, labels) in blocks.iter().zip(&labels) {
            match &block.task {
                BlockAction::Count => {}
                BlockAction::Record { filter, .. } => {
                    code.count_instead(block.counter, labels.full, labels.done)?;
                    if filter.is_some() {
                        code.count_instead(block.filtered(), labels.filtered, labels.done)?;
                    }
                }
                BlockAction::Follow { pool, .. } => {
                    code.count_instead(pool.missed(), labels.full, labels.done)?;
                }
            }
        }
        let may_ring =
            frame.is_return || blocks.iter().any(|block| block.task.is_follow()) || loads > 0;
        if may_ring {
            code.ring()?;
        }
        code.a.set_label(&mut entry)?;
        code.enter()?;
        Ok(Self { code, labels, entry })
    }

    fn finish(mut self, at: Gva) -> Result<Detour, DetourError> {
        let mut displaced = self.code.displaced;
        self.code.a.set_label(&mut displaced)?;
        // The place of the label: the next code is not the assembler's.
        self.code.a.zero_bytes()?;
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let assembled = self.code.a.assemble_options(at.0, options)?;
        let offset = |label: &CodeLabel| -> Result<usize, IcedError> {
            let ip = assembled.label_ip(label)?;
            Ok(usize::try_from(ip.wrapping_sub(at.0)).unwrap_or_default())
        };
        let entry = offset(&self.entry)?;
        let doorbell = self.code.int3.as_ref().map(offset).transpose()?;
        let bytes = assembled.inner.code_buffer;
        let displaced = bytes.len();
        Ok(Detour { bytes, entry, doorbell, displaced })
    }
}
