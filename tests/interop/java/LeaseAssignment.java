import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Instant;
import java.util.*;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.slf4j.LoggerFactory;
import software.amazon.kinesis.coordinator.LeaderDecider;
import software.amazon.kinesis.coordinator.assignment.LAMDataManager;
import software.amazon.kinesis.coordinator.assignment.LeaseAssignmentManager;
import software.amazon.kinesis.coordinator.assignment.MigrationAwareLAMDataManager;
import software.amazon.kinesis.coordinator.migration.TableMigrationStatus;
import software.amazon.kinesis.coordinator.migration.TableMigrationStatusProvider;
import software.amazon.kinesis.leases.*;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.retrieval.kpl.ExtendedSequenceNumber;
import software.amazon.kinesis.worker.metricstats.WorkerMetricStats;

/**
 * Runs the LeaseAssignmentManager of the library on tables that are given as JSON, one a line, and prints what it would
 * write, as JSON, one a line. See tests/planning/assignment_vectors.py.
 *
 * Each table is decided about many times. What the decision should not depend on is by chance each time: the names of
 * the workers, the attributes of leases that only change the order of hash sets, and every second time the order of the
 * rows, which else is that of the input. A result is
 * the list of "class>worker:kind", sorted, where leases of one class are alike. A table with a "wanted" result is decided
 * about until that result comes, at most "most" times.
 */
public class LeaseAssignment {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long NOW = TimeUnit.DAYS.toNanos(20);
    private static final TableMigrationStatusProvider COMPLETE = new TableMigrationStatusProvider();

    private final JsonNode table;
    private final boolean inOrder;
    private final Random random;
    private final Map<String, String> written = Collections.synchronizedMap(new TreeMap<>());
    private Map<String, String> newNames;
    private Map<String, String> oldNames;

    private LeaseAssignment(JsonNode table, boolean inOrder, Random random) {
        this.table = table;
        this.inOrder = inOrder;
        this.random = random;
    }

    public static void main(String[] arguments) throws Exception {
        ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.OFF);
        set(COMPLETE, "currentMode", TableMigrationStatus.TABLE_MIGRATION_STATUS_COMPLETE);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
        System.exit(0);
    }

    private static ObjectNode answer(JsonNode table) throws Exception {
        Random random = new Random(table.get("seed").asLong());
        String wanted = table.path("wanted").toString();
        Map<String, Integer> results = new LinkedHashMap<>();
        int times = 0;
        while (times < table.get("times").asInt()
                || times < table.path("most").asInt() && !results.containsKey(wanted)) {
            LeaseAssignment one = new LeaseAssignment(table, times % 2 == 0, random);
            results.merge(JSON.writeValueAsString(one.decide()), 1, Integer::sum);
            times++;
        }
        ObjectNode told = JSON.createObjectNode().put("times", times);
        ArrayNode list = told.putArray("results");
        for (Map.Entry<String, Integer> each : results.entrySet()) {
            list.addObject().put("count", each.getValue()).set("result", JSON.readTree(each.getKey()));
        }
        return told;
    }

    private List<String> decide() throws Exception {
        rename();
        LeaseAssignmentManager manager = manager();
        Runnable[] run = new Runnable[1];
        set(manager, "executorService", proxy(ScheduledExecutorService.class, (self, method, given) -> {
            run[0] = (Runnable) given[0];
            return null;
        }));
        manager.start();
        set(manager, "tookOverLeadershipInThisRun", true);
        set(manager, "lamRunCounter", table.get("runs").asInt() % setting("balance_every").asInt());
        Map<String, Lease> before = get(manager, "prevRunLeasesState");
        for (JsonNode row : table.get("leases")) {
            Lease lease = before(row);
            if (lease != null) {
                before.put(lease.leaseKey(), lease);
            }
        }
        run[0].run();
        int failures = get(manager, "noOfContinuousFailedAttempts");
        if (failures > 0) {
            throw new IllegalStateException("the manager failed on " + table);
        }
        List<String> result = new ArrayList<>();
        for (JsonNode row : table.get("leases")) {
            String owner = written.remove(row.get("key").asText());
            if (owner != null) {
                result.add(row.get("class").asText() + ">" + owner);
            }
        }
        if (!written.isEmpty()) {
            throw new IllegalStateException("unknown leases: " + written);
        }
        Collections.sort(result);
        return result;
    }

    /** Names of chance for the workers, because the order of hash maps follows from them. */
    private void rename() {
        newNames = new HashMap<>();
        oldNames = new HashMap<>();
        for (JsonNode row : table.get("leases")) {
            rename(row.path("owner"));
            rename(row.path("checkpoint_owner"));
        }
        for (JsonNode row : table.get("metrics")) {
            rename(row.get("worker"));
        }
    }

    private void rename(JsonNode name) {
        if (name.isTextual() && !newNames.containsKey(name.asText())) {
            String other = Long.toString(random.nextLong(), 36);
            newNames.put(name.asText(), other);
            oldNames.put(other, name.asText());
        }
    }

    private LeaseAssignmentManager manager() throws Exception {
        LeaseManagementConfig.WorkerUtilizationAwareAssignmentConfig config =
                new LeaseManagementConfig.WorkerUtilizationAwareAssignmentConfig()
                        .dampeningPercentage(setting("dampening").asInt())
                        .reBalanceThresholdPercentage(setting("rebalance_threshold").asInt())
                        .allowThroughputOvershoot(setting("allow_overshoot").asBoolean())
                        .varianceBalancingFrequency(setting("balance_every").asInt())
                        .workerMetricsEMAAlpha(setting("ema_alpha").asDouble())
                        .workerMetricsReporterFreqInMillis(seconds("report_period"));
        if (setting("max_throughput").isNumber()) {
            config.maxThroughputPerHostKBps(setting("max_throughput").asDouble());
        }
        LeaseManagementConfig.GracefulLeaseHandoffConfig handoff =
                LeaseManagementConfig.GracefulLeaseHandoffConfig.builder()
                        .gracefulLeaseHandoffTimeoutMillis(seconds("handoff_timeout"))
                        .isGracefulLeaseHandoffEnabled(setting("graceful_handoff").asBoolean())
                        .build();
        LeaderDecider leads = proxy(LeaderDecider.class, (self, method, given) -> true);
        Supplier<Long> clock = () -> NOW;
        Constructor<?> make = LeaseAssignmentManager.class.getConstructors()[0];
        return (LeaseAssignmentManager) make.newInstance(
                refresher(), leads, config, "leader", seconds("failover_time"), new NullMetricsFactory(), null, clock,
                setting("max_leases").asInt(), handoff, LeaseAssignmentStrategy.valueOf(setting("strategy").asText()),
                10_000L, null, data(config));
    }

    /** A refresher that notes what it is to write, and refuses it. */
    private LeaseRefresher refresher() {
        return proxy(LeaseRefresher.class, (self, method, given) -> {
            String kind = method.getName().equals("assignLease") ? "ASSIGN"
                    : method.getName().equals("initiateGracefulLeaseHandoff") ? "HAND_OVER" : null;
            if (kind == null) {
                throw new IllegalStateException(method.getName());
            }
            written.put(((Lease) given[0]).leaseKey(), oldNames.get((String) given[1]) + ":" + kind);
            return false;
        });
    }

    private LAMDataManager data(LeaseManagementConfig.WorkerUtilizationAwareAssignmentConfig config) {
        List<EntityDAO.Entity> leases = new ArrayList<>();
        List<EntityDAO.Entity> metrics = new ArrayList<>();
        table.get("leases").forEach(row -> leases.add(lease(row)));
        table.get("metrics").forEach(row -> metrics.add(metrics(row)));
        if (!inOrder) {
            Collections.shuffle(leases, random);
            Collections.shuffle(metrics, random);
        }
        EntityDAO rows = proxy(EntityDAO.class, (self, method, given) -> Map.of(
                EntityType.LEASE, EntityDAO.EntityScanList.builder().entities(leases).build(),
                EntityType.WORKER_METRIC_STATS, EntityDAO.EntityScanList.builder().entities(metrics).build()));
        ExecutorService here = proxy(ExecutorService.class, (self, method, given) -> {
            ((Runnable) given[0]).run();
            return null;
        });
        return new MigrationAwareLAMDataManager(
                rows, null, COMPLETE, summary -> { }, config, here, new NullMetricsFactory());
    }

    private WorkerMetricStats metrics(JsonNode row) {
        WorkerMetricStats metrics = new WorkerMetricStats();
        metrics.setWorkerId(newNames.get(row.get("worker").asText()));
        metrics.setEntityType(EntityType.WORKER_METRIC_STATS);
        metrics.setLastUpdateTime(Instant.now().getEpochSecond() - row.get("age").asLong());
        Map<String, List<Double>> values = new HashMap<>();
        Map<String, List<Long>> limits = new HashMap<>();
        row.get("values").fields().forEachRemaining(each -> {
            List<Double> list = new ArrayList<>();
            each.getValue().forEach(number -> list.add(number.asDouble()));
            values.put(each.getKey(), list);
        });
        row.get("limits").fields().forEachRemaining(each -> {
            List<Long> list = new ArrayList<>();
            each.getValue().forEach(number -> list.add(number.asLong()));
            limits.put(each.getKey(), list);
        });
        metrics.setMetricStats(values);
        metrics.setOperatingRange(limits);
        metrics.setMetricStatsMap(new HashMap<>());
        return metrics;
    }

    private Lease lease(JsonNode row) {
        Lease lease = new Lease();
        lease.leaseKey(row.get("key").asText());
        lease.leaseOwner(newNames.get(row.path("owner").asText(null)));
        lease.checkpointOwner(newNames.get(row.path("checkpoint_owner").asText(null)));
        lease.leaseCounter(1000L);
        lease.ownerSwitchesSinceCheckpoint((long) random.nextInt(1 << 20));
        JsonNode end = row.path("ended_at");
        lease.checkpoint(end.isNumber()
                ? new ExtendedSequenceNumber("SHARD_END", end.asLong())
                : new ExtendedSequenceNumber(Integer.toString(random.nextInt(1 << 20))));
        if (row.path("throughput").isTextual()) {
            lease.throughputKBps(Double.parseDouble(row.get("throughput").asText()));
        }
        return lease;
    }

    /** The lease as it was at the run before; null if it was not there. */
    private Lease before(JsonNode row) {
        boolean expired = row.path("still_for").isNumber();
        boolean asked = row.path("asked_for").isNumber();
        if (!expired && !asked) {
            return null;
        }
        Lease lease = lease(row);
        if (!expired) {
            lease.leaseCounter(999L);
        }
        lease.lastCounterIncrementNanos(NOW - (long) (row.path("still_for").asDouble() * 1e9));
        if (asked) {
            lease.checkpointOwnerTimeoutTimestampMillis(TimeUnit.NANOSECONDS.toMillis(NOW)
                    + seconds("handoff_timeout") + seconds("failover_time")
                    - (long) (row.get("asked_for").asDouble() * 1000));
        }
        return lease;
    }

    private JsonNode setting(String name) {
        return table.get("settings").path(name);
    }

    private long seconds(String name) {
        return Math.round(setting(name).asDouble() * 1000);
    }

    @SuppressWarnings("unchecked")
    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return (T) Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler);
    }

    @SuppressWarnings("unchecked")
    private static <T> T get(Object of, String name) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return (T) field.get(of);
    }

    private static void set(Object of, String name, Object value) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        field.set(of, value);
    }
}
