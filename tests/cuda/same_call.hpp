// For tests that compare the project's own declarations of a library with the library's header:
// types that stand for one another, and calls that pass the same.
#pragma once

#include <type_traits>

// Types that stand for one another though their names differ.
template <class Ours, class Theirs> struct stands_for : std::is_same<Ours, Theirs> {
};
#define STANDS_FOR(ours, theirs)                                                                   \
    template <> struct stands_for<ours, theirs> : std::true_type {                                 \
    };

// Passed the same way: integers and enumerations of one size, pointers to what is the same.
template <class Ours, class Theirs> constexpr bool same()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        using O = std::remove_pointer_t<Ours>;
        using T = std::remove_pointer_t<Theirs>;
        return std::is_const_v<O> == std::is_const_v<T> &&
               same<std::remove_const_t<O>, std::remove_const_t<T>>();
    } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs);
    } else {
        return stands_for<Ours, Theirs>::value;
    }
}

template <class Ours, class Theirs> struct same_call : std::false_type {
};
template <class R, class... P, class S, class... Q>
struct same_call<R(P...), S(Q...)>
    : std::bool_constant<same<R, S>() && std::conjunction_v<std::bool_constant<same<P, Q>()>...>> {
};
