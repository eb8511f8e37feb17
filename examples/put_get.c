/* Puts one value and gets it back.
 *
 *     cc put_get.c $(pkg-config --cflags --libs tarn) -o put_get && ./put_get
 * tarn://127.0.0.1:6479 */
#include <stdio.h>
#include <string.h>
#include <tarn.h>

int main(int argc, char **argv) {
    static const char key[] = "example:greeting", text[] = "the same bytes, on every machine";
    const char *url = argc > 1 ? argv[1] : "tarn://127.0.0.1:6479";
    tarn_client *client;
    if (tarn_connect(url, NULL, &client) != TARN_OK) {
        fprintf(stderr, "%s\n", tarn_last_error());
        return 1;
    }

    tarn_put_options options;
    tarn_put_options_init(&options);
    options.exists_ok = 1; /* whoever came first has put the same */
    char buffer[256];
    size_t len = 0;
    tarn_status status = tarn_put(client, key, strlen(key), text, sizeof(text), &options);
    if (status == TARN_OK)
        status = tarn_get(client, key, strlen(key), buffer, sizeof(buffer), &len, NULL);
    if (status == TARN_OK) {
        printf("%zu bytes: %s\n", len, buffer);
    } else {
        fprintf(stderr, "%s\n", tarn_last_error());
    }
    tarn_close(&client);
    return status == TARN_OK ? 0 : 1;
}
