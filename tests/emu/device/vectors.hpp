// CUDA's vector types, those that kernels use.
#pragma once

#include <stdint.h>

#define EMU_VECTOR2(T, name, align)                                                                \
    struct alignas(align) name##2                                                                  \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    static inline name##2 make_##name##2(T x, T y)                                                 \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define EMU_VECTOR3(T, name)                                                                       \
    struct name##3                                                                                 \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    static inline name##3 make_##name##3(T x, T y, T z)                                            \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }
#define EMU_VECTOR4(T, name, align)                                                                \
    struct alignas(align) name##4                                                                  \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                       \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
EMU_VECTOR2(signed char, char, 2)
EMU_VECTOR4(signed char, char, 4)
EMU_VECTOR2(unsigned char, uchar, 2)
EMU_VECTOR4(unsigned char, uchar, 4)
EMU_VECTOR2(short, short, 4)
EMU_VECTOR4(short, short, 8)
EMU_VECTOR2(unsigned short, ushort, 4)
EMU_VECTOR4(unsigned short, ushort, 8)
EMU_VECTOR2(int, int, 8)
EMU_VECTOR3(int, int)
EMU_VECTOR4(int, int, 16)
EMU_VECTOR2(unsigned, uint, 8)
EMU_VECTOR3(unsigned, uint)
EMU_VECTOR4(unsigned, uint, 16)
EMU_VECTOR2(long long, longlong, 16)
EMU_VECTOR2(unsigned long long, ulonglong, 16)
EMU_VECTOR2(float, float, 8)
EMU_VECTOR3(float, float)
EMU_VECTOR4(float, float, 16)
EMU_VECTOR2(double, double, 16)
#undef EMU_VECTOR2
#undef EMU_VECTOR3
#undef EMU_VECTOR4
