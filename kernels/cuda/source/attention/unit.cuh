// A unit, one (sequence, KV head), and how its K or V is read. Positions before `past` lie in the cache,
// those from there on are fresh rows of this step, on every device alike.
#pragma once

// `Unit` in src/attention.rs.
struct Unit {
    u32 row0;
    u32 rows;
    u32 past;
    u32 kv_head;
    u64 cache_offset;
    u64 scores_offset;
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
    const T* cached;
    const T* fresh;
    u32 past;
    u32 fresh_stride;
    u32 head_dim;

    DEVICE PlainRows(const void* fresh_rows, const void* cache, const Unit& unit, const Shape& shape)
        : cached(static_cast<const T*>(cache) + unit.cache_offset),
          fresh(static_cast<const T*>(fresh_rows) +
                ((u64)unit.row0 * shape.kv_heads + unit.kv_head) * shape.head_dim),
          past(unit.past), fresh_stride(shape.kv_heads * shape.head_dim), head_dim(shape.head_dim) {}

    // Elements `at` to `at + 7`, zeros behind the head.
    DEVICE void eight(u32 position, u32 at, float* to) const {
        const T* row = position < past ? cached + (u64)position * head_dim
                                       : fresh + (u64)(position - past) * fresh_stride;
        load8(row + at, head_dim - at, head_dim % 8 == 0, to);
    }
};

// K or V of a unit as 4-bit records.
struct FourRows {
    const u8* cached;
    const u8* fresh;
    u32 past;
    u32 fresh_stride;
    u32 bytes;
    u32 head_dim;

    DEVICE FourRows(const void* fresh_rows, const void* cache, const Unit& unit, const Shape& shape)
        : past(unit.past), head_dim(shape.head_dim) {
        bytes = kv_record_bytes(head_dim);
        fresh_stride = shape.kv_heads * bytes;
        cached = static_cast<const u8*>(cache) + unit.cache_offset / head_dim * bytes;
        fresh = static_cast<const u8*>(fresh_rows) +
                ((u64)unit.row0 * shape.kv_heads + unit.kv_head) * bytes;
    }

    DEVICE void eight(u32 position, u32 at, float* to) const {
        const u8* record = position < past ? cached + (u64)position * bytes
                                           : fresh + (u64)(position - past) * fresh_stride;
        decode_kv8(record, head_dim, at, to);
    }
};
