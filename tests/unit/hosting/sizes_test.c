/* Structs of options of programs that were built with another tarn.h than libtarn. */
#include "../test.h"

#include "tarn.h"

static unsigned char room[1024];

static void room_fill(void) {
    memset(room, 0xee, sizeof(room));
}
/* Bytes that were written, from the beginning. */
static size_t room_used(void) {
    size_t n = sizeof(room);
    while (n > 0 && room[n - 1] == 0xee) n--;
    return n;
}
static size_t told(void) {
    size_t size;
    memcpy(&size, room, sizeof(size));
    return size;
}

/* Programs of 0.1 call the functions, with structs of these bytes. */
#define OF_0_1(type, bytes)                                                                        \
    do {                                                                                           \
        room_fill();                                                                               \
        (type##_init)((type *)(void *)room);                                                       \
        CHECK_EQ(told(), (size_t)(bytes));                                                         \
        CHECK_EQ(room_used(), (size_t)(bytes));                                                    \
    } while (0)

TEST(programs_of_0_1_get_no_more_than_they_have_room_for) {
    OF_0_1(tarn_options, 208);
    OF_0_1(tarn_call, 32);
    OF_0_1(tarn_put_options, 80);
    OF_0_1(tarn_host_options, 184);
}

#define OF_NOW(type)                                                                               \
    do {                                                                                           \
        room_fill();                                                                               \
        type##_init((type *)(void *)room);                                                         \
        CHECK_EQ(told(), sizeof(type));                                                            \
        CHECK_EQ(room_used(), sizeof(type));                                                       \
    } while (0)

TEST(programs_of_this_version_get_all) {
    OF_NOW(tarn_options);
    OF_NOW(tarn_call);
    OF_NOW(tarn_put_options);
    OF_NOW(tarn_host_options);
}

TEST(those_of_a_later_one_get_zeroes_behind_what_is_known) {
    room_fill();
    tarn_options_init_sized((tarn_options *)(void *)room, sizeof(tarn_options) + 64);
    CHECK_EQ(told(), sizeof(tarn_options) + 64);
    CHECK_EQ(room_used(), sizeof(tarn_options) + 64);
    tarn_options now;
    tarn_options_init(&now);
    CHECK(memcmp(room + sizeof(size_t), (char *)&now + sizeof(size_t),
                 sizeof(now) - sizeof(size_t)) == 0);
    for (size_t i = 0; i < 64; i++) CHECK_EQ(room[sizeof(now) + i], 0);
}

TEST_MAIN()
