// A unit, one (sequence, KV head), and how its K or V is read. Positions before `past` lie in the cache, or are
// rows of this step too, from `shared_row` on; those from there on are its own fresh rows, on every device alike.
#pragma once

// `Unit` in src/attention.rs.
struct Unit {
    u32 row0;
    u32 rows;
    u32 past;
    u32 kv_head;
    u64 cache_offset;
    u64 scores_offset;
    u32 shared_row;
    u32 unused;

    DEVICE bool shares() const { return shared_row != ~0u; }
    // Rows that belong into the cache.
    DEVICE u32 appended() const { return shares() ? past + rows : rows; }
    // The row of one of them, and its position.
    DEVICE u32 appended_row(u32 index) const {
        if (!shares()) return row0 + index;
        return index < past ? shared_row + index : row0 + index - past;
    }
    DEVICE u32 appended_position(u32 index) const { return shares() ? index : past + index; }
};

struct Shape {
    u32 heads;
    u32 kv_heads;
    u32 head_dim;

    DEVICE u32 group() const { return heads / kv_heads; }
    // Elements before a query's head in `[rows, heads * head_dim]`; `head` counts within the group.
    DEVICE u64 head_offset(const Unit& unit, u32 row, u32 head) const {
        const u64 before = (u64)(unit.row0 + row) * heads + unit.kv_head * group() + head;
        return before * head_dim;
    }
};

// Positions that are taken together, from position 0 on.
static constexpr u32 SPLIT = 256;

// K or V of a unit as elements.
template <class T> struct PlainRows {
    // Position 0, and the first fresh one.
    const T* before;
    const T* fresh;
    u32 past;
    u32 before_stride;
    u32 fresh_stride;
    u32 head_dim;

    DEVICE PlainRows(const void* fresh_rows, const void* cache, const Unit& unit, const Shape& shape)
        : past(unit.past), fresh_stride(shape.kv_heads * shape.head_dim), head_dim(shape.head_dim) {
        const T* rows = static_cast<const T*>(fresh_rows) + (u64)unit.kv_head * head_dim;
        fresh = rows + (u64)unit.row0 * fresh_stride;
        before = unit.shares() ? rows + (u64)unit.shared_row * fresh_stride
                               : static_cast<const T*>(cache) + unit.cache_offset;
        before_stride = unit.shares() ? fresh_stride : head_dim;
    }

    DEVICE const T* row(u32 position) const {
        return position < past ? before + (u64)position * before_stride
                               : fresh + (u64)(position - past) * fresh_stride;
    }

    // Elements `at` to `at + 7`, zeros behind the head.
    DEVICE void eight(u32 position, u32 at, float* to) const {
        load8(row(position) + at, head_dim - at, head_dim % 8 == 0, to);
    }
};

// K or V of a unit as 4-bit records.
struct FourRows {
    const u8* before;
    const u8* fresh;
    u32 past;
    u32 before_stride;
    u32 fresh_stride;
    u32 head_dim;

    DEVICE FourRows(const void* fresh_rows, const void* cache, const Unit& unit, const Shape& shape)
        : past(unit.past), head_dim(shape.head_dim) {
        const u32 bytes = kv_record_bytes(head_dim);
        fresh_stride = shape.kv_heads * bytes;
        const u8* rows = static_cast<const u8*>(fresh_rows) + (u64)unit.kv_head * bytes;
        fresh = rows + (u64)unit.row0 * fresh_stride;
        before = unit.shares() ? rows + (u64)unit.shared_row * fresh_stride
                               : static_cast<const u8*>(cache) + unit.cache_offset / head_dim * bytes;
        before_stride = unit.shares() ? fresh_stride : bytes;
    }

    DEVICE void eight(u32 position, u32 at, float* to) const {
        const u8* record = position < past ? before + (u64)position * before_stride
                                           : fresh + (u64)(position - past) * fresh_stride;
        decode_kv8(record, head_dim, at, to);
    }
};
