// Answers the questions in the file -Dasked, line by line, into the file -Dtold. See election_vectors.py.
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.concurrent.*;
import java.util.stream.*;
import software.amazon.awssdk.protocols.jsoncore.JsonNode;
import software.amazon.awssdk.services.dynamodb.model.AttributeValue;
import software.amazon.kinesis.common.*;
import software.amazon.kinesis.leases.*;
import software.amazon.kinesis.leases.dynamodb.DynamoDBLeaseSerializer;
import software.amazon.kinesis.metrics.NullMetricsFactory;

String word(String text) {
    return text == null ? "-" : "+" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
}

String unword(String word) {
    return word.equals("-") ? null : new String(Base64.getDecoder().decode(word.substring(1)), StandardCharsets.UTF_8);
}

// A LeaseRefresher that can do nothing but list these leases.
LeaseRefresher listing(List<Lease> leases) {
    return (LeaseRefresher) java.lang.reflect.Proxy.newProxyInstance(LeaseRefresher.class.getClassLoader(), new Class<?>[] {LeaseRefresher.class},
        (self, method, arguments) -> {
            if (method.getName().equals("listLeases")) return leases;
            throw new IllegalStateException(method.getName());
        });
}

ScheduledExecutorService never() {
    return (ScheduledExecutorService) java.lang.reflect.Proxy.newProxyInstance(ScheduledExecutorService.class.getClassLoader(),
        new Class<?>[] {ScheduledExecutorService.class}, (self, method, arguments) -> null);
}

String leader(String[] words) throws Exception {
    List<Lease> leases = new ArrayList<>();
    for (String one : words) { Lease lease = new Lease(); lease.leaseOwner(unword(one)); leases.add(lease); }
    Class<?> decider = Class.forName("software.amazon.kinesis.coordinator.DeterministicShuffleShardSyncLeaderDecider");
    Constructor<?> make = Stream.of(decider.getDeclaredConstructors())
        .filter(each -> Stream.of(each.getParameterTypes()).noneMatch(type -> type.getSimpleName().equals("ReadWriteLock")))
        .findFirst().get();
    make.setAccessible(true);
    // 3.x also wants a MetricsFactory.
    Object asked = make.getParameterCount() == 3
        ? make.newInstance(listing(leases), never(), 1)
        : make.newInstance(listing(leases), never(), 1, new NullMetricsFactory());
    Method isLeader = decider.getMethod("isLeader", String.class);
    isLeader.setAccessible(true);
    if ((Boolean) isLeader.invoke(asked, "somebody without a lease")) return "-";
    List<String> found = leases.stream().map(Lease::leaseOwner).filter(Objects::nonNull).distinct()
        .filter(owner -> { try { return (Boolean) isLeader.invoke(asked, owner); } catch (Exception e) { throw new RuntimeException(e); } })
        .collect(Collectors.toList());
    if (found.size() != 1) throw new IllegalStateException(found.toString());
    return word(found.get(0));
}

String random(String[] words) {
    Random random = new Random(Long.parseLong(words[0]));
    return Stream.of(words).skip(1).map(bound -> "" + random.nextInt(Integer.parseInt(bound))).collect(Collectors.joining(" "));
}

String hole(String[] words) throws Exception {
    List<Lease> leases = new ArrayList<>();
    for (String one : words) {
        String[] ends = one.split(":");
        Lease lease = new Lease();
        lease.hashKeyRange(HashKeyRangeForLease.deserialize(ends[0], ends[1]));
        leases.add(lease);
    }
    Class<?> auditor = Class.forName("software.amazon.kinesis.coordinator.PeriodicShardSyncManager");
    Method check = auditor.getDeclaredMethod("checkForHoleInHashKeyRanges", StreamIdentifier.class, List.class);
    check.setAccessible(true);
    return "" + ((Optional<?>) check.invoke(null, StreamIdentifier.singleStreamInstance("stream"), leases)).isPresent();
}

AttributeValue value(JsonNode node) {
    Map.Entry<String, JsonNode> typed = node.asObject().entrySet().iterator().next();
    JsonNode of = typed.getValue();
    switch (typed.getKey()) {
        case "S": return AttributeValue.builder().s(of.asString()).build();
        case "N": return AttributeValue.builder().n(of.asString()).build();
        case "SS": return AttributeValue.builder().ss(of.asArray().stream().map(JsonNode::asString).collect(Collectors.toList())).build();
        case "NULL": return AttributeValue.builder().nul(true).build();
        default: throw new IllegalStateException(typed.getKey());
    }
}

String row(String[] words) {
    Map<String, AttributeValue> item = new HashMap<>();
    JsonNode.parser().parse(unword(words[0])).asObject().forEach((name, node) -> item.put(name, value(node)));
    try {
        return word(new DynamoDBLeaseSerializer().fromDynamoRecord(item).leaseOwner());
    } catch (NullPointerException | IllegalArgumentException e) {
        return "unreadable";
    }
}

String answer(String line) throws Exception {
    String[] all = line.split(" ");
    String[] words = Arrays.copyOfRange(all, 1, all.length);
    switch (all[0]) {
        case "leader": return leader(words);
        case "random": return random(words);
        case "hole": return hole(words);
        case "row": return row(words);
        default: throw new IllegalStateException(all[0]);
    }
}

List<String> answers = new ArrayList<>();
for (String line : Files.readAllLines(Path.of(System.getProperty("asked")))) { answers.add(answer(line)); }
Files.write(Path.of(System.getProperty("told")), answers);
/exit
