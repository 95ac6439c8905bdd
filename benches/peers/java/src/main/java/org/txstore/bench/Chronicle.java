package org.txstore.bench;

import java.nio.file.Path;
import net.openhft.chronicle.bytes.BytesStore;
import net.openhft.chronicle.bytes.SyncMode;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;

/**
 * Chronicle Queue, one thread: `FOLDER COUNT BYTES SYNC_EVERY WARM` appends COUNT bodies and prints how many a second.
 * SYNC_EVERY: after how many it syncs, 0 for never. WARM: how many go to another queue first, for the compiler.
 */
public final class Chronicle {
    private Chronicle() {
    }

    public static void main(String[] words) {
        Path folder = Path.of(words[0]);
        int count = Integer.parseInt(words[1]);
        byte[] body = new byte[Integer.parseInt(words[2])];
        int syncEvery = Integer.parseInt(words[3]);
        int warm = Integer.parseInt(words[4]);
        append(folder.resolve("warm"), warm, body, 0);
        System.out.println(append(folder.resolve("queue"), count, body, syncEvery));
    }

    private static double append(Path folder, int count, byte[] body, int syncEvery) {
        BytesStore<?, ?> bytes = BytesStore.wrap(body);
        // Without this mode its sync() does nothing.
        SyncMode mode = syncEvery > 0 ? SyncMode.SYNC : SyncMode.NONE;
        try (SingleChronicleQueue queue = SingleChronicleQueueBuilder.binary(folder).syncMode(mode).build();
            ExcerptAppender appender = queue.createAppender()) {
            long begin = System.nanoTime();
            for (int number = 1; number <= count; number++) {
                appender.writeBytes(bytes);
                if (syncEvery > 0 && number % syncEvery == 0) {
                    appender.sync();
                }
            }
            double seconds = (System.nanoTime() - begin) / 1e9;
            if (count > 0 && queue.entryCount() != count) {
                throw new IllegalStateException(queue.entryCount() + " of " + count + " are there");
            }
            return count / seconds;
        }
    }
}
