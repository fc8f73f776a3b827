-- The bodies of the triggers by which facts move rows, for all stores. Nothing else moves a row.

-- part: hand_over
-- A replacing row takes over the replaced row's state, numbering and order id. This happens only once, because a replaced row cannot be
-- replaced again.
UPDATE state SET state = o.state, attempt = o.attempt, generation = o.generation,
        possible_duplicate_of = o.possible_duplicate_of, inherited_attempts = o.attempt, order_id = o.order_id
    FROM instruction i, state o, move m
    WHERE i.replaces = NEW.instruction AND o.instruction = NEW.instruction
        AND m.before = o.state AND m.kind = NEW.kind AND NEW.attempt = o.attempt AND state.instruction = i.number;

-- part: move_row
-- A fact that does not fit the state, attempt or next order id of its row moves nothing.
UPDATE state SET state = m.after, attempt = NEW.attempt, generation = state.generation + m.generations,
        possible_duplicate_of = CASE m.is_marking WHEN 1 THEN NEW.attempt ELSE state.possible_duplicate_of END,
        order_id = CASE m.generations WHEN 1 THEN NEW.order_id ELSE state.order_id END,
        first_sent = CASE m.is_sending WHEN 1 THEN coalesce(state.first_sent, state.intent) ELSE state.first_sent END,
        intent = CASE m.attempts WHEN 1 THEN NEW.number ELSE state.intent END, fact = NEW.number
    FROM move m
    WHERE state.instruction = NEW.instruction AND m.before = state.state AND m.kind = NEW.kind
        AND NEW.attempt = state.attempt + m.attempts
        AND (m.attempts = 0 OR NEW.order_id = coalesce(state.order_id,
            (SELECT i.client_orderid FROM instruction i WHERE i.number = NEW.instruction)));

-- part: note_contradiction
-- A fact that moved nothing is stored as a contradiction, even if its row is unknown.
INSERT INTO contradiction
    SELECT NEW.number, coalesce((SELECT s.state FROM state s WHERE s.instruction = NEW.instruction), 'unknown')
    WHERE NOT EXISTS (SELECT 1 FROM state s WHERE s.instruction = NEW.instruction AND s.fact = NEW.number);
